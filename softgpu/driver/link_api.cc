// The JIT linker. Its result is PTX text, which cuModuleLoadData and cuLibraryLoadData take as they take a
// cubin. Inputs are PTX, fat binaries, host objects and archives of them; machine code alone cannot be
// linked.
#include <algorithm>
#include <cstring>

#include "base/user_file.h"
#include "kernels/ptx/printer.h"
#include "softgpu/driver/code.h"
#include "softgpu/driver/link.h"
#include "softgpu/driver/state.h"

namespace tessera::softgpu::driver {
namespace {

struct LinkState {
  std::mutex mutex;  // guards all below
  unsigned sm = 0;
  std::vector<CUjit_option> options;
  void** values = nullptr;   // the caller's, which it keeps until the link is destroyed (documented)
  std::vector<void*> given;  // what stood there at first
  std::vector<LinkInput> inputs;
  std::string errors, infos, output;
  bool complete = false;

  CUresult fail(CUresult code, const std::string& why) {
    errors += why;
    if (!errors.empty() && errors.back() != '\n') errors += '\n';
    report("link: %s", why.c_str());
    log();
    return code;
  }
  void log() {
    std::vector<void*> now = given;  // the sizes in the caller's array were replaced by the last call
    fill_logs(unsigned(options.size()), options.data(), now.data(), errors, infos);
    for (size_t i = 0; i < options.size(); ++i)
      if (options[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES || options[i] == CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES)
        values[i] = now[i];
  }
};

Registry<LinkState>& links() {
  static auto* registry = new Registry<LinkState>;  // never destroyed
  return *registry;
}

// Members of an archive (ar): 60-byte headers, even offsets. Names are not needed.
bool for_each_member(std::span<const uint8_t> archive, auto&& visit) {
  constexpr std::string_view kMagic = "!<arch>\n";
  if (archive.size() < kMagic.size() || std::memcmp(archive.data(), kMagic.data(), kMagic.size()) != 0)
    return false;
  for (size_t at = kMagic.size(); at + 60 <= archive.size();) {
    char size_text[11] = {};
    std::memcpy(size_text, archive.data() + at + 48, 10);
    const uint64_t size = std::strtoull(size_text, nullptr, 10);
    const bool index = archive[at] == '/';  // symbol table, long names
    at += 60;
    if (size > archive.size() - at) return false;
    if (!index && !visit(archive.subspan(at, size))) return true;
    at += size + size % 2;
  }
  return true;
}

// The result of a link is PTX: what the linker was told of registers must stand in it.
void limit_registers(ptx::Module& module, uint32_t most) {
  for (ptx::Item& item : module.items) {
    if (item.kind != ptx::Item::Kind::kFunction || !item.function->is_entry || !item.function->has_body)
      continue;
    std::vector<ptx::Directive>& directives = item.function->directives;
    const auto own = std::find_if(directives.begin(), directives.end(),
                                  [](const ptx::Directive& d) { return d.name == ".maxnreg"; });
    if (own == directives.end())
      directives.push_back({".maxnreg", {most}, {}});
    else if (!own->values.empty())
      own->values[0] = std::min<uint64_t>(own->values[0], most);
  }
}

CUresult add(CUlinkState handle, CUjitInputType type, const void* data, size_t size, const char* name) {
  const std::shared_ptr<LinkState> link = links().find(handle);
  if (!link) return CUDA_ERROR_INVALID_HANDLE;
  if (!data || !size || unsigned(type) >= CU_JIT_NUM_INPUT_TYPES) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(link->mutex);
  if (link->complete) return CUDA_ERROR_INVALID_VALUE;
  const std::string label = name && *name ? name : "<unnamed>";
  auto add_one = [&](std::span<const uint8_t> bytes) {
    LinkInput input;
    input.name = label;
    std::string problem;
    if (CUresult bad = read_link_input(bytes, link->sm, &input.module, &problem))
      return link->fail(bad, label + ": " + problem);
    const uint32_t most =
        max_registers(unsigned(link->given.size()), link->options.data(), link->given.data());
    if (most < 255) limit_registers(input.module, most);
    link->inputs.push_back(std::move(input));
    return CUDA_SUCCESS;
  };
  std::span<const uint8_t> bytes(static_cast<const uint8_t*>(data), size);
  switch (int(type)) {
    case CU_JIT_INPUT_PTX:  // the size may or may not count the final zero
      while (!bytes.empty() && bytes.back() == 0) bytes = bytes.first(bytes.size() - 1);
      [[fallthrough]];
    case CU_JIT_INPUT_CUBIN:
    case CU_JIT_INPUT_FATBINARY:
    case CU_JIT_INPUT_OBJECT:
      return add_one(bytes);
    case CU_JIT_INPUT_LIBRARY: {
      CUresult code = CUDA_SUCCESS;
      const bool ok = for_each_member(bytes, [&](std::span<const uint8_t> member) {
        // Host objects without device code are passed over.
        LinkInput probe;
        std::string nothing;
        if (read_link_input(member, link->sm, &probe.module, &nothing) == CUDA_SUCCESS)
          code = add_one(member);
        return code == CUDA_SUCCESS;
      });
      return ok ? code : link->fail(CUDA_ERROR_INVALID_IMAGE, label + ": not an archive");
    }
    default:
      return link->fail(CUDA_ERROR_NOT_SUPPORTED, label + ": NVVM (LTO) input is not supported");
  }
}

CUresult add_file(CUlinkState handle, CUjitInputType type, const char* path) {
  if (!path) return CUDA_ERROR_INVALID_VALUE;
  if (!links().find(handle)) return CUDA_ERROR_INVALID_HANDLE;
  auto bytes = base::read_user_file(path, kMostBytesOfFile);
  if (!bytes) return CUDA_ERROR_FILE_NOT_FOUND;
  return add(handle, type, bytes->data(), bytes->size(), path);
}

}  // namespace
}  // namespace tessera::softgpu::driver

using namespace tessera::softgpu::driver;  // entry points are global by nature

CUresult cuLinkCreate_v2(unsigned int numOptions, CUjit_option* options, void** optionValues,
                         CUlinkState* stateOut) {
  TS_CONTEXT(cuLinkCreate_v2, context);
  if (!stateOut || (numOptions && (!options || !optionValues))) return CUDA_ERROR_INVALID_VALUE;
  auto made = std::make_shared<LinkState>();
  made->sm = device_of(*context).sm();
  made->options.assign(options, options + numOptions);
  made->values = optionValues;
  made->given.assign(optionValues, optionValues + numOptions);
  links().add(made);
  *stateOut = reinterpret_cast<CUlinkState>(made.get());
  return CUDA_SUCCESS;
}
CUresult cuLinkCreate(unsigned int numOptions, CUjit_option* options, void** optionValues,
                      CUlinkState* stateOut) {
  return cuLinkCreate_v2(numOptions, options, optionValues, stateOut);
}

CUresult cuLinkAddData_v2(CUlinkState state, CUjitInputType type, void* data, size_t size, const char* name,
                          unsigned int, CUjit_option*, void**) {
  TS_ENTER(cuLinkAddData_v2);
  return add(state, type, data, size, name);
}
CUresult cuLinkAddData(CUlinkState state, CUjitInputType type, void* data, size_t size, const char* name,
                       unsigned int, CUjit_option*, void**) {
  TS_ENTER(cuLinkAddData);
  return add(state, type, data, size, name);
}
CUresult cuLinkAddFile_v2(CUlinkState state, CUjitInputType type, const char* path, unsigned int,
                          CUjit_option*, void**) {
  TS_ENTER(cuLinkAddFile_v2);
  return add_file(state, type, path);
}
CUresult cuLinkAddFile(CUlinkState state, CUjitInputType type, const char* path, unsigned int, CUjit_option*,
                       void**) {
  TS_ENTER(cuLinkAddFile);
  return add_file(state, type, path);
}

CUresult cuLinkComplete(CUlinkState state, void** cubinOut, size_t* sizeOut) {
  TS_ENTER(cuLinkComplete);
  const std::shared_ptr<LinkState> link = links().find(state);
  if (!link) return CUDA_ERROR_INVALID_HANDLE;
  if (!cubinOut) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(link->mutex);
  if (!link->complete) {
    if (link->inputs.empty()) return link->fail(CUDA_ERROR_INVALID_VALUE, "error   : nothing to link");
    std::string problems;
    const bool runtime = std::any_of(link->inputs.begin(), link->inputs.end(),
                                     [](const LinkInput& each) { return needs_device_runtime(each.module); });
    if (runtime) link->inputs.push_back(device_runtime());
    const auto module = link_modules(std::move(link->inputs), &problems);
    link->inputs.clear();
    link->complete = true;
    // 999 for anything that does not resolve: so users of the vendor's linker report it.
    if (!module) return link->fail(CUDA_ERROR_UNKNOWN, problems);
    link->output = tessera::ptx::print(*module);
  }
  if (link->output.empty()) return CUDA_ERROR_UNKNOWN;
  link->log();
  *cubinOut = link->output.data();  // with its final zero
  if (sizeOut) *sizeOut = link->output.size() + 1;
  return CUDA_SUCCESS;
}

CUresult cuLinkDestroy(CUlinkState state) {
  TS_ENTER(cuLinkDestroy);
  return links().remove(state) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
