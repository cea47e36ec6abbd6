// Modules and libraries: loading code and finding kernels and variables in it.
#include <algorithm>
#include <cstring>
#include <string>

#include "softgpu/driver/capture.h"
#include "softgpu/driver/code.h"
#include "softgpu/driver/state.h"
#include "softgpu/driver/stream.h"

using namespace tessera::softgpu::driver;  // entry points are global by nature

namespace {

CUresult load(CUmodule* out, const void* image, const char* path, unsigned n, const CUjit_option* options,
              void** values) {
  std::shared_ptr<Context> context;
  if (CUresult none = current(&context)) return none;
  if (!out || (!image && !path)) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult unsafe = check_unsafe()) return unsafe;
  Code code;
  std::string problem;
  std::shared_ptr<Module> module;
  const unsigned sm = device_of(*context).sm();
  code.max_registers = max_registers(n, options, values);
  CUresult failed = image ? read_code(image, sm, &code, &problem) : read_code_file(path, sm, &code, &problem);
  if (!failed) {
    if (CUresult ended = synchronize_without_launches(*context))
      return ended;  // of the work that it waited for
    failed = load_module(context, code, &module, &problem);
  }
  if (failed) {
    report("module not loaded: %s", problem.c_str());
    fill_logs(n, options, values, problem, "");
    return failed;
  }
  *out = reinterpret_cast<CUmodule>(module.get());
  return CUDA_SUCCESS;
}

CUresult load_library(CUlibrary* out, const void* image, const char* path, unsigned n, CUjit_option* options,
                      void** values) {
  if (!out || (!image && !path)) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult unsafe = check_unsafe()) return unsafe;
  std::map<unsigned, Code> codes;
  for (const auto& device : driver().devices) {
    if (codes.count(device->sm())) continue;
    Code code;
    std::string problem;
    code.max_registers = max_registers(n, options, values);
    if (CUresult failed = image ? read_code(image, device->sm(), &code, &problem)
                                : read_code_file(path, device->sm(), &code, &problem)) {
      report("library not loaded: %s", problem.c_str());
      fill_logs(n, options, values, problem, "");
      return failed;
    }
    codes[device->sm()] = std::move(code);
  }
  auto library = std::make_shared<Library>();
  library->codes = std::move(codes);
  for (const auto& item : library->codes.begin()->second.module->items) {
    if (item.kind != tessera::ptx::Item::Kind::kFunction || !item.function->is_entry ||
        !item.function->has_body)
      continue;
    auto kernel = std::make_shared<LibraryKernel>();
    kernel->library = library;
    kernel->library_handle = library.get();
    kernel->name = std::string(item.function->name);
    driver().kernels.add(kernel);
    library->kernels[kernel->name] = std::move(kernel);
  }
  driver().libraries.add(library);
  *out = reinterpret_cast<CUlibrary>(library.get());
  return CUDA_SUCCESS;
}

CUresult symbol(const Module& module, const char* name, CUdeviceptr* address, size_t* bytes) {
  tessera::softgpu::exec::Program::Symbol found;
  if (!name || (!address && !bytes)) return CUDA_ERROR_INVALID_VALUE;
  if (!module.program->symbol(name, &found)) return CUDA_ERROR_NOT_FOUND;
  if (address) *address = found.address;
  if (bytes) *bytes = found.size_bytes;
  return CUDA_SUCCESS;
}

}  // namespace

CUresult cuModuleLoad(CUmodule* module, const char* fname) {
  TS_ENTER(cuModuleLoad);
  return load(module, nullptr, fname, 0, nullptr, nullptr);
}
CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  TS_ENTER(cuModuleLoadData);
  return load(module, image, nullptr, 0, nullptr, nullptr);
}
CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned int numOptions,
                            CUjit_option* options, void** optionValues) {
  TS_ENTER(cuModuleLoadDataEx);
  return load(module, image, nullptr, numOptions, options, optionValues);
}
CUresult cuModuleLoadFatBinary(CUmodule* module, const void* fatCubin) {
  TS_ENTER(cuModuleLoadFatBinary);
  return load(module, fatCubin, nullptr, 0, nullptr, nullptr);
}

CUresult cuModuleUnload(CUmodule hmod) {
  TS_ENTER(cuModuleUnload);
  if (!hmod) return CUDA_ERROR_INVALID_VALUE;
  const std::shared_ptr<Module> module = driver().modules.find(hmod);
  if (!module || module->library) return CUDA_ERROR_INVALID_HANDLE;
  const std::shared_ptr<Context> context = driver().contexts.find(module->context);  // whichever is current
  if (!context) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  if (CUresult unsafe = check_unsafe()) return unsafe;
  (void)synchronize(*context);
  unload(module);
  return sticky(*context);  // of the work that it waited for
}

CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode* mode) {
  TS_ENTER(cuModuleGetLoadingMode);
  if (!mode) return CUDA_ERROR_INVALID_VALUE;
  *mode = loads_lazily() ? CU_MODULE_LAZY_LOADING : CU_MODULE_EAGER_LOADING;
  return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction* hfunc, CUmodule hmod, const char* name) {
  TS_CONTEXT(cuModuleGetFunction, context);
  if (!hfunc || !name) return CUDA_ERROR_INVALID_VALUE;
  const std::shared_ptr<Module> module = driver().modules.find(hmod);
  if (!module) return CUDA_ERROR_INVALID_HANDLE;
  std::shared_ptr<Function> function;
  if (CUresult failed = find_function(module, name, &function)) return failed;
  function->loaded = true;
  *hfunc = reinterpret_cast<CUfunction>(function.get());
  return CUDA_SUCCESS;
}

CUresult cuModuleGetFunctionCount(unsigned int* count, CUmodule mod) {
  TS_CONTEXT(cuModuleGetFunctionCount, context);
  const std::shared_ptr<Module> module = driver().modules.find(mod);
  if (!module) return CUDA_ERROR_INVALID_HANDLE;
  if (!count) return CUDA_ERROR_INVALID_VALUE;
  *count = unsigned(module->program->kernel_names().size());
  return CUDA_SUCCESS;
}

CUresult cuModuleEnumerateFunctions(CUfunction* functions, unsigned int numFunctions, CUmodule mod) {
  TS_CONTEXT(cuModuleEnumerateFunctions, context);
  const std::shared_ptr<Module> module = driver().modules.find(mod);
  if (!module) return CUDA_ERROR_INVALID_HANDLE;
  if (!functions) return CUDA_ERROR_INVALID_VALUE;
  const std::vector<std::string> names = module->program->kernel_names();
  for (unsigned i = 0; i < numFunctions && i < names.size(); ++i) {
    std::shared_ptr<Function> function;
    if (CUresult failed = find_function(module, names[i], &function)) return failed;
    functions[i] = reinterpret_cast<CUfunction>(function.get());
  }
  return CUDA_SUCCESS;
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr* dptr, size_t* bytes, CUmodule hmod, const char* name) {
  TS_CONTEXT(cuModuleGetGlobal_v2, context);
  const std::shared_ptr<Module> module = driver().modules.find(hmod);
  if (!module) return CUDA_ERROR_INVALID_HANDLE;
  return symbol(*module, name, dptr, bytes);
}

CUresult cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option* jitOptions,
                           void** jitOptionsValues, unsigned int numJitOptions, CUlibraryOption*, void**,
                           unsigned int) {
  TS_ENTER(cuLibraryLoadData);
  return load_library(library, code, nullptr, numJitOptions, jitOptions, jitOptionsValues);
}
CUresult cuLibraryLoadFromFile(CUlibrary* library, const char* fileName, CUjit_option* jitOptions,
                               void** jitOptionsValues, unsigned int numJitOptions, CUlibraryOption*, void**,
                               unsigned int) {
  TS_ENTER(cuLibraryLoadFromFile);
  return load_library(library, nullptr, fileName, numJitOptions, jitOptions, jitOptionsValues);
}

CUresult cuLibraryUnload(CUlibrary library) {
  TS_ENTER(cuLibraryUnload);
  if (!library) return CUDA_ERROR_INVALID_VALUE;
  const std::shared_ptr<Library> mine = driver().libraries.find(library);
  if (!mine) return CUDA_ERROR_INVALID_HANDLE;
  if (CUresult unsafe = check_unsafe()) return unsafe;
  driver().libraries.remove(library);
  for (const auto& [name, kernel] : mine->kernels) driver().kernels.remove(kernel.get());
  std::map<uint64_t, std::shared_ptr<Module>> modules;
  {
    std::lock_guard lock(mine->mutex);
    modules.swap(mine->modules);
  }
  for (const auto& [id, module] : modules) {
    const std::shared_ptr<Context> context = driver().contexts.find(module->context);
    if (context && context->id == id) (void)synchronize(*context);
    unload(module);
  }
  return CUDA_SUCCESS;
}

CUresult cuLibraryGetKernel(CUkernel* pKernel, CUlibrary library, const char* name) {
  TS_ENTER(cuLibraryGetKernel);
  if (!pKernel || !name) return CUDA_ERROR_INVALID_VALUE;
  const std::shared_ptr<Library> mine = driver().libraries.find(library);
  if (!mine) return CUDA_ERROR_INVALID_HANDLE;
  const auto it = mine->kernels.find(name);
  if (it == mine->kernels.end()) return CUDA_ERROR_NOT_FOUND;
  *pKernel = reinterpret_cast<CUkernel>(it->second.get());
  return CUDA_SUCCESS;
}

CUresult cuLibraryGetKernelCount(unsigned int* count, CUlibrary lib) {
  TS_ENTER(cuLibraryGetKernelCount);
  if (!count) return CUDA_ERROR_INVALID_VALUE;
  const std::shared_ptr<Library> mine = driver().libraries.find(lib);
  if (!mine) return CUDA_ERROR_INVALID_HANDLE;
  *count = unsigned(mine->kernels.size());
  return CUDA_SUCCESS;
}

CUresult cuLibraryEnumerateKernels(CUkernel* kernels, unsigned int numKernels, CUlibrary lib) {
  TS_ENTER(cuLibraryEnumerateKernels);
  if (!kernels) return CUDA_ERROR_INVALID_VALUE;
  const std::shared_ptr<Library> mine = driver().libraries.find(lib);
  if (!mine) return CUDA_ERROR_INVALID_HANDLE;
  unsigned i = 0;
  for (const auto& [name, kernel] : mine->kernels) {
    if (i == numKernels) break;
    kernels[i++] = reinterpret_cast<CUkernel>(kernel.get());
  }
  return CUDA_SUCCESS;
}

CUresult cuLibraryGetModule(CUmodule* pMod, CUlibrary library) {
  TS_CONTEXT(cuLibraryGetModule, context);
  if (!pMod) return CUDA_ERROR_INVALID_VALUE;
  const std::shared_ptr<Library> mine = driver().libraries.find(library);
  if (!mine) return CUDA_ERROR_INVALID_HANDLE;
  std::shared_ptr<Module> module;
  if (CUresult failed = instance_of(mine, context, &module)) return failed;
  *pMod = reinterpret_cast<CUmodule>(module.get());
  return CUDA_SUCCESS;
}

CUresult cuLibraryGetGlobal(CUdeviceptr* dptr, size_t* bytes, CUlibrary library, const char* name) {
  TS_CONTEXT(cuLibraryGetGlobal, context);
  const std::shared_ptr<Library> mine = driver().libraries.find(library);
  if (!mine) return CUDA_ERROR_INVALID_HANDLE;
  std::shared_ptr<Module> module;
  if (CUresult failed = instance_of(mine, context, &module)) return failed;
  return symbol(*module, name, dptr, bytes);
}

CUresult cuLibraryGetManaged(CUdeviceptr* dptr, size_t* bytes, CUlibrary library, const char* name) {
  return cuLibraryGetGlobal(dptr, bytes, library,
                            name);  // managed variables are module globals at host addresses
}

CUresult cuKernelGetFunction(CUfunction* pFunc, CUkernel kernel) {
  TS_CONTEXT(cuKernelGetFunction, context);
  if (!pFunc) return CUDA_ERROR_INVALID_VALUE;
  const std::shared_ptr<LibraryKernel> mine = driver().kernels.find(kernel);
  if (!mine) return CUDA_ERROR_INVALID_HANDLE;
  std::shared_ptr<Function> function;
  if (CUresult failed = function_of_kernel(context, mine, &function)) return failed;
  *pFunc = reinterpret_cast<CUfunction>(function.get());
  return CUDA_SUCCESS;
}

CUresult cuKernelGetLibrary(CUlibrary* pLib, CUkernel kernel) {
  TS_ENTER(cuKernelGetLibrary);
  if (!pLib) return CUDA_ERROR_INVALID_VALUE;
  const std::shared_ptr<LibraryKernel> mine = driver().kernels.find(kernel);
  if (!mine) return CUDA_ERROR_INVALID_HANDLE;
  *pLib = reinterpret_cast<CUlibrary>(const_cast<Library*>(mine->library_handle));
  return CUDA_SUCCESS;
}
