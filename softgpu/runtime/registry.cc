#include "softgpu/runtime/registry.h"

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "softgpu/runtime/runtime.h"

namespace tessera::softgpu::runtime {
namespace {

struct KernelRecord {
  Image* image;
  std::string name;
  CUkernel handle = nullptr;  // null until first use
};

struct Variable {
  Image* image;
  std::string name;
  size_t size_bytes;
  void** managed_slot;  // null for ordinary variables
};

struct Registry {
  std::mutex mutex;  // guards everything below, and the images
  std::unordered_set<Image*> images;
  std::unordered_map<const void*, KernelRecord> kernels;
  std::unordered_map<const void*, Variable> variables;
  std::unordered_set<CUkernel>
      handles;  // everything that may stand for a kernel without being a host address
  cudaError_t last_failure = cudaSuccess;
};

Registry& registry() {  // leaked: programs unregister after our destructors
  static auto* instance = new Registry;
  return *instance;
}

}  // namespace

struct Image {
  const void* wrapper;
  CUlibrary library = nullptr;
  bool managed_ready = false;
};

namespace {

// A first launch may come inside a capture, where loading code is forbidden to the application but needed by
// us: nothing that loading does is, or could be, part of the captured work.
class RelaxedCapture {
 public:
  RelaxedCapture() { driver().ThreadExchangeStreamCaptureMode(&mode_); }
  ~RelaxedCapture() { driver().ThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;  // afterwards the thread's own
};

// Lock held. A failure is not kept: a later call, e.g. after cudaSetDevice, tries again.
cudaError_t load(Image& image) {
  if (image.library) return cudaSuccess;
  const RelaxedCapture relaxed;
  return as_error(
      driver().LibraryLoadData(&image.library, image.wrapper, nullptr, nullptr, 0, nullptr, nullptr, 0));
}

// Lock held.
cudaError_t fill_managed(Registry& r, Image& image) {
  if (image.managed_ready) return cudaSuccess;
  const RelaxedCapture relaxed;
  for (const auto& [host, variable] : r.variables) {
    if (variable.image != &image || !variable.managed_slot) continue;
    CUdeviceptr address = 0;
    size_t bytes = 0;
    const CUresult result =
        driver().LibraryGetManaged(&address, &bytes, image.library, variable.name.c_str());
    if (result != CUDA_SUCCESS) return as_error(result);
    *variable.managed_slot = reinterpret_cast<void*>(address);
  }
  image.managed_ready = true;
  return cudaSuccess;
}

cudaError_t not_found_as(cudaError_t status, cudaError_t instead) {
  return status == cudaErrorSymbolNotFound ? instead : status;
}

}  // namespace

Image* add_image(const void* wrapper) {
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  return *r.images.insert(new Image{wrapper}).first;
}

void add_kernel(Image* image, const void* host, const char* name) {
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  r.kernels.insert_or_assign(host, KernelRecord{image, name});
}

void add_variable(Image* image, const void* host, const char* name, size_t size_bytes) {
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  r.variables.insert_or_assign(host, Variable{image, name, size_bytes, nullptr});
}

void add_managed_variable(Image* image, void** host_slot, const char* name, size_t size_bytes) {
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  r.variables.insert_or_assign(host_slot, Variable{image, name, size_bytes, host_slot});
}

void remove_image(Image* image) {
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  if (r.images.erase(image) == 0) return;
  std::erase_if(r.kernels, [&](const auto& entry) {
    if (entry.second.image != image) return false;
    r.handles.erase(entry.second.handle);
    return true;
  });
  std::erase_if(r.variables, [&](const auto& entry) { return entry.second.image == image; });
  // At exit the driver may be gone already; a plug-in that is closed earlier frees its code.
  if (image->library && enter_driver() == cudaSuccess) driver().LibraryUnload(image->library);
  delete image;
}

cudaError_t initialise_image(Image* image) {
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  if (!r.images.contains(image)) return cudaErrorInvalidValue;
  const cudaError_t status = load(*image);
  return status == cudaSuccess ? fill_managed(r, *image) : status;
}

cudaError_t find_kernel(const void* function, CUkernel* kernel) {
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  const auto entry = r.kernels.find(function);
  if (entry == r.kernels.end()) {
    auto handle = static_cast<CUkernel>(const_cast<void*>(function));
    if (!r.handles.contains(handle)) return r.last_failure = cudaErrorInvalidDeviceFunction;
    *kernel = handle;
    return cudaSuccess;
  }
  KernelRecord& record = entry->second;
  if (!record.handle) {
    if (const cudaError_t status = load(*record.image)) return r.last_failure = status;
    const CUresult result =
        driver().LibraryGetKernel(&record.handle, record.image->library, record.name.c_str());
    if (result != CUDA_SUCCESS) {
      record.handle = nullptr;
      return r.last_failure = not_found_as(as_error(result), cudaErrorInvalidDeviceFunction);
    }
    r.handles.insert(record.handle);
  }
  *kernel = record.handle;
  return cudaSuccess;
}

void remember_kernel(CUkernel kernel) {
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  r.handles.insert(kernel);
}

cudaError_t last_kernel_failure() {
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  return r.last_failure == cudaSuccess ? cudaErrorInvalidDeviceFunction : r.last_failure;
}

cudaError_t find_variable(const void* symbol, CUdeviceptr* address, size_t* size_bytes) {
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  auto entry = r.variables.find(symbol);
  if (entry == r.variables.end()) {
    // A managed variable is also named by the address that its pointer holds.
    for (entry = r.variables.begin(); entry != r.variables.end(); ++entry) {
      if (entry->second.managed_slot && *entry->second.managed_slot == symbol) break;
    }
  }
  if (!symbol || entry == r.variables.end()) return cudaErrorInvalidSymbol;
  const Variable& variable = entry->second;
  if (const cudaError_t status = load(*variable.image)) return status;
  const auto lookup = variable.managed_slot ? driver().LibraryGetManaged : driver().LibraryGetGlobal;
  return not_found_as(as_error(lookup(address, size_bytes, variable.image->library, variable.name.c_str())),
                      cudaErrorInvalidSymbol);
}

}  // namespace tessera::softgpu::runtime
