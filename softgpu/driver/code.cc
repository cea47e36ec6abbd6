#include "softgpu/driver/code.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "base/hash.h"
#include "base/user_file.h"
#include "kernels/image/image.h"
#include "kernels/ptx/parser.h"
#include "profiles/images.h"
#include "softgpu/driver/link.h"
#include "softgpu/driver/memory.h"
#include "softgpu/driver/state.h"
#include "softgpu/driver/stream.h"

namespace tessera::softgpu::driver {
namespace {

uint64_t hash_of(std::string_view text) {
  return base::fnv1a(text.data(), text.size());
}

const Device& device_of(const Function& function) {
  return driver::device_of(*function.module->context);
}

// The newest PTX that this device may run.
const image::Entry* choose_ptx(const std::vector<image::Entry>& entries, unsigned sm) {
  const image::Entry* best = nullptr;
  for (const image::Entry& entry : entries) {
    if (entry.kind != image::EntryKind::kPtx || entry.sm > sm) continue;
    if (entry.arch_specific && entry.sm != sm) continue;
    if (entry.family_specific && entry.sm / 10 != sm / 10) continue;
    if (!best || entry.sm >= best->sm) best = &entry;
  }
  return best;
}

CUresult read_entries(base::Result<std::vector<image::Entry>> entries, unsigned sm, ptx::Module* module,
                      uint64_t* hash, unsigned* target_sm, std::string* problem) {
  if (!entries.ok()) {
    *problem = entries.error().text;
    return CUDA_ERROR_INVALID_IMAGE;
  }
  const image::Entry* entry = choose_ptx(*entries, sm);
  if (!entry) {
    bool any_ptx = false;
    for (const image::Entry& each : *entries) any_ptx = any_ptx || each.kind == image::EntryKind::kPtx;
    *problem = any_ptx ? "the image's PTX needs a newer device than sm_" + std::to_string(sm)
                       : std::string(
                             "the image has machine code only; the software GPU runs PTX: compile with "
                             "-gencode arch=compute_XX,code=compute_XX");
    return any_ptx ? CUDA_ERROR_INVALID_PTX : CUDA_ERROR_NO_BINARY_FOR_GPU;
  }
  auto payload = image::load(*entry);
  if (!payload.ok()) {
    *problem = payload.error().text;
    return CUDA_ERROR_INVALID_IMAGE;
  }
  const std::string_view text(reinterpret_cast<const char*>(payload->data()), payload->size());
  *hash = hash_of(text);
  if (const char* folder = std::getenv("TESSERA_SOFTGPU_TRACE"); folder && *folder)
    profiles::keep_image(folder, *hash, text);
  auto parsed = ptx::parse(text);
  if (!parsed.ok()) {
    *problem = parsed.error().text;
    return CUDA_ERROR_INVALID_PTX;
  }
  *module = std::move(parsed).value();
  *target_sm = entry->sm;
  return CUDA_SUCCESS;
}

CUresult link_units(std::vector<LinkInput> inputs, Code* code, std::string* problem) {
  const bool runtime = std::any_of(inputs.begin(), inputs.end(),
                                   [](const LinkInput& each) { return needs_device_runtime(each.module); });
  if (runtime) inputs.push_back(device_runtime());
  code->module = link_modules(std::move(inputs), problem);
  return code->module ? CUDA_SUCCESS : CUDA_ERROR_INVALID_PTX;
}

CUresult read_whole(base::Result<std::vector<image::Entry>> entries, unsigned sm, Code* code,
                    std::string* problem) {
  ptx::Module module;
  if (CUresult bad = read_entries(std::move(entries), sm, &module, &code->hash, &code->target_sm, problem))
    return bad;
  if (needs_device_runtime(module)) {
    std::vector<LinkInput> inputs;
    inputs.push_back({std::move(module), "module"});
    return link_units(std::move(inputs), code, problem);
  }
  code->module = std::make_shared<const ptx::Module>(std::move(module));
  return CUDA_SUCCESS;
}

// The translation units of a device link (-rdc): containers behind a wrapper of version 2. Empty for any
// other image. The wrapper was read before, so it may be looked at.
std::vector<const void*> linked_units(const void* image) {
  struct Wrapper {
    uint32_t magic, version;
    const void* data;
    const void* const* units;
  };
  std::vector<const void*> units;
  uint32_t magic;
  std::memcpy(&magic, image, sizeof magic);
  if (magic != 0x466243b1) return units;
  Wrapper wrapper;
  std::memcpy(&wrapper, image, sizeof wrapper);
  if (wrapper.version == 2 && wrapper.units)
    for (const void* const* unit = wrapper.units; *unit; ++unit) units.push_back(*unit);
  return units;
}

}  // namespace

CUresult read_code(const void* image, unsigned sm, Code* code, std::string* problem) {
  auto entries = image::list_unsized(image);
  const std::vector<const void*> units = entries.ok() ? linked_units(image) : std::vector<const void*>();
  if (units.size() < 2) return read_whole(std::move(entries), sm, code, problem);
  std::vector<LinkInput> inputs;
  code->hash = 0;
  for (const void* unit : units) {
    LinkInput input;
    uint64_t hash = 0;
    unsigned target_sm = 0;
    if (CUresult bad = read_entries(image::list_unsized(unit), sm, &input.module, &hash, &target_sm, problem))
      return bad;
    input.name = "unit " + std::to_string(inputs.size() + 1);
    code->hash = base::fnv1a_step(code->hash, hash);
    code->target_sm = std::max(code->target_sm, target_sm);
    inputs.push_back(std::move(input));
  }
  return link_units(std::move(inputs), code, problem);
}

CUresult read_link_input(std::span<const uint8_t> bytes, unsigned sm, ptx::Module* module,
                         std::string* problem) {
  uint64_t hash = 0;
  unsigned target_sm = 0;
  return read_entries(image::list(bytes), sm, module, &hash, &target_sm, problem);
}
CUresult read_link_input(const void* image, unsigned sm, ptx::Module* module, std::string* problem) {
  uint64_t hash = 0;
  unsigned target_sm = 0;
  return read_entries(image::list_unsized(image), sm, module, &hash, &target_sm, problem);
}

CUresult read_code_file(const char* path, unsigned sm, Code* code, std::string* problem) {
  const auto text = base::read_user_file(path, kMostBytesOfFile);
  if (!text) {
    *problem = text.error().text;
    return CUDA_ERROR_FILE_NOT_FOUND;
  }
  return read_whole(image::list({reinterpret_cast<const uint8_t*>(text->data()), text->size()}), sm, code,
                    problem);
}

uint32_t max_registers(unsigned n, const CUjit_option* options, void* const* values) {
  uint32_t most = 255;
  for (unsigned i = 0; options && values && i < n; ++i)
    if (options[i] == CU_JIT_MAX_REGISTERS)
      if (const auto value = uint32_t(reinterpret_cast<uintptr_t>(values[i]))) most = std::min(most, value);
  return most;
}

void fill_logs(unsigned n, const CUjit_option* options, void** values, const std::string& errors,
               const std::string& infos) {
  // Buffer and size stand in two options; the size is replaced by what was written.
  auto fill = [&](CUjit_option buffer_option, CUjit_option size_option, const std::string& text) {
    char* buffer = nullptr;
    size_t size = 0, size_index = 0;
    for (unsigned i = 0; options && values && i < n; ++i) {
      if (options[i] == buffer_option) buffer = static_cast<char*>(values[i]);
      if (options[i] == size_option) {
        size = unsigned(reinterpret_cast<uintptr_t>(values[i]));
        size_index = i;
      }
    }
    if (!buffer || !size) return;
    const size_t n_copy = std::min(text.size(), size - 1);
    std::memcpy(buffer, text.data(), n_copy);
    buffer[n_copy] = 0;
    values[size_index] = reinterpret_cast<void*>(uintptr_t(n_copy));
  };
  fill(CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, errors);
  fill(CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, infos);
}

CUresult load_module(const std::shared_ptr<Context>& context, const Code& code,
                     std::shared_ptr<Module>* module, std::string* problem) {
  auto program = exec::Program::load(*code.module, Memory::get().map(context->device), code.max_registers);
  if (!program.ok()) {
    *problem = program.error().text;
    report("module refused: %s", problem->c_str());
    return CUDA_ERROR_INVALID_PTX;
  }
  for (const auto& [name, why] : (*program)->refused()) report("not executable: %s", why.c_str());
  auto made = std::make_shared<Module>();
  made->context = context.get();
  made->program = std::move(program).value();
  made->image_hash = code.hash;
  made->ptx_version = code.module->version_major * 10 + code.module->version_minor;
  made->target_sm = code.target_sm;
  driver().modules.add(made);
  *module = std::move(made);
  return CUDA_SUCCESS;
}

bool loads_lazily() {
  const char* wanted = std::getenv("CUDA_MODULE_LOADING");
  return !wanted || std::strcmp(wanted, "EAGER") != 0;
}

CUresult find_function(const std::shared_ptr<Module>& module, const std::string& name,
                       std::shared_ptr<Function>* found) {
  std::lock_guard lock(module->mutex);
  if (auto it = module->functions.find(name); it != module->functions.end()) {
    *found = it->second;
    return CUDA_SUCCESS;
  }
  const exec::Kernel* kernel = module->program->kernel(name);
  if (!kernel) {
    const auto refusal = module->program->refused().find(name);
    if (refusal == module->program->refused().end()) return CUDA_ERROR_NOT_FOUND;
    report("refused: %s", refusal->second.c_str());
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  auto function = std::make_shared<Function>();
  function->module = module;
  function->kernel = kernel;
  function->info = &module->program->info(*kernel);
  function->cost_seed = module->image_hash ^ hash_of(name);
  function->loaded = !loads_lazily();
  module->functions[name] = function;
  driver().functions.add(function);
  *found = std::move(function);
  return CUDA_SUCCESS;
}

void unload(const std::shared_ptr<Module>& module) {
  driver().modules.remove(module.get());
  std::map<std::string, std::shared_ptr<Function>> functions;
  {
    std::lock_guard lock(module->mutex);
    functions.swap(module->functions);  // breaks the cycle module <-> function
  }
  for (const auto& [name, function] : functions) driver().functions.remove(function.get());
}

namespace {
bool has_function(Module& module, const std::string& name) {
  std::lock_guard lock(module.mutex);
  return module.functions.contains(name);
}
}  // namespace

CUresult instance_of(const std::shared_ptr<Library>& library, const std::shared_ptr<Context>& context,
                     std::shared_ptr<Module>* module) {
  std::lock_guard lock(library->mutex);
  std::shared_ptr<Module>& mine = library->modules[context->id];
  if (!mine) {
    std::string problem;
    const Code& code = library->codes.at(driver::device_of(*context).sm());
    std::shared_ptr<Module> made;
    if (CUresult failed = load_module(context, code, &made, &problem)) return failed;
    made->library = library.get();
    mine = std::move(made);
  }
  *module = mine;
  return CUDA_SUCCESS;
}

CUresult function_of_kernel(const std::shared_ptr<Context>& context,
                            const std::shared_ptr<LibraryKernel>& kernel,
                            std::shared_ptr<Function>* function) {
  const std::shared_ptr<Library> library = kernel->library.lock();
  if (!library) return CUDA_ERROR_INVALID_HANDLE;
  std::shared_ptr<Module> module;
  if (CUresult failed = instance_of(library, context, &module)) return failed;
  // Loaded lazily: with the first use in a context, which waits for what runs there (documented).
  if (loads_lazily() && !has_function(*module, kernel->name))
    if (CUresult ended = synchronize_without_launches(*context)) return ended;
  if (CUresult failed = find_function(module, kernel->name, function)) return failed;
  std::lock_guard lock(kernel->mutex);
  for (const auto& [attribute, value] : kernel->attributes) (void)set_attribute(**function, attribute, value);
  return CUDA_SUCCESS;
}

CUresult function_of(const std::shared_ptr<Context>& context, CUfunction handle,
                     std::shared_ptr<Function>* function) {
  *function = driver().functions.find(handle);
  if (*function) {
    return (*function)->module->context == context.get() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
  }
  const std::shared_ptr<LibraryKernel> kernel = driver().kernels.find(handle);
  return kernel ? function_of_kernel(context, kernel, function) : CUDA_ERROR_INVALID_HANDLE;
}

uint64_t resident_blocks(const Function& function, uint32_t threads, uint32_t dynamic_shared_bytes) {
  const auto& gpu = device_of(function).gpu;
  const exec::KernelInfo& info = *function.info;
  return uint64_t(gpu.sm.count) * profiles::blocks_per_sm(gpu, threads, info.registers,
                                                          info.static_shared_bytes + dynamic_shared_bytes);
}

uint32_t dynamic_shared_limit(const Function& function) {
  const uint32_t opted = uint32_t(function.max_dynamic_shared.load(std::memory_order_relaxed));
  const uint32_t fixed = function.info->static_shared_bytes;
  const uint32_t plain = device_of(function).gpu.block.shared_bytes;
  return std::max(opted, plain > fixed ? plain - fixed : 0);
}

CUresult get_attribute(const Function& function, CUfunction_attribute attribute, int* value) {
  const exec::KernelInfo& info = *function.info;
  auto relaxed = [](const std::atomic<int>& field) { return field.load(std::memory_order_relaxed); };
  switch (int(attribute)) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: {
      const uint32_t by_registers =
          device_of(function).gpu.block.max_registers / std::max(1u, info.registers) / 32 * 32;
      *value = int(
          std::min({info.max_threads_per_block, device_of(function).gpu.block.max_threads, by_registers}));
      return CUDA_SUCCESS;
    }
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
      *value = int(info.static_shared_bytes);
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES:
      *value = int(info.constant_bytes);
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
      *value = int(info.local_bytes);
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
      *value = int(info.registers);
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
      *value = int(function.module->target_sm);
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
      *value = int(device_of(function).sm());
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_CACHE_MODE_CA:
      *value = 0;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      *value = int(dynamic_shared_limit(function));
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      *value = relaxed(function.carveout);
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET:
      *value = function.info->explicit_cluster;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH: {
      const size_t axis = size_t(attribute) - CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH;
      const auto& compiled = function.info->required_cluster;
      *value = compiled[0] ? int(compiled[axis]) : relaxed(function.cluster[axis]);
      return CUDA_SUCCESS;
    }
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
      *value = relaxed(function.non_portable_cluster);
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
      *value = relaxed(function.cluster_policy);
      return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult set_attribute(Function& function, CUfunction_attribute attribute, int value) {
  auto store = [&](std::atomic<int>& field, int low, int high) {
    if (value < low || value > high) return CUDA_ERROR_INVALID_VALUE;
    field.store(value, std::memory_order_relaxed);
    return CUDA_SUCCESS;
  };
  switch (int(attribute)) {
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      return store(
          function.max_dynamic_shared, 0,
          int(device_of(function).gpu.block.shared_optin_bytes) - int(function.info->static_shared_bytes));
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      return store(function.carveout, -1, 100);
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH:
      if (function.info->required_cluster[0]) return CUDA_ERROR_NOT_PERMITTED;
      return store(function.cluster[size_t(attribute) - CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH], 0, 16);
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
      return store(function.non_portable_cluster, 0, 1);
    case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
      return store(function.cluster_policy, 0, 2);
  }
  return CUDA_ERROR_INVALID_VALUE;
}

}  // namespace tessera::softgpu::driver
