// Surface objects: what they were made from, and the page that device code sees (surface_view.h).
#include <cstdlib>
#include <cstring>

#include "softgpu/driver/array.h"
#include "softgpu/driver/memory.h"
#include "softgpu/driver/state.h"
#include "softgpu/exec/surface_view.h"

namespace tessera::softgpu::driver {
namespace {

using exec::SurfaceView;

struct Surface {
  Context* context = nullptr;
  CUDA_RESOURCE_DESC resource = {};
  std::shared_ptr<void> keeps;  // memory of the array
  SurfaceView* view = nullptr;  // the handle; in the device's map

  ~Surface() {
    if (!view) return;
    Memory::get().map(device).remove(reinterpret_cast<uint64_t>(view));
    std::free(view);
  }
  bool publish(const SurfaceView& what) {
    view = static_cast<SurfaceView*>(std::aligned_alloc(64, (sizeof what + 63) / 64 * 64));
    if (!view) return false;
    std::memcpy(view, &what, sizeof what);
    device = context->device;
    Memory::get().map(device).add(reinterpret_cast<uint64_t>(view), sizeof what, false);
    return true;
  }
  int device = 0;
};

// By handle, which is the view's address.
class Surfaces {
 public:
  std::shared_ptr<Surface> find(uint64_t handle) {
    std::lock_guard lock(mutex_);
    const auto it = live_.find(handle);
    return it == live_.end() ? nullptr : it->second;
  }
  uint64_t add(std::shared_ptr<Surface> surface) {
    std::lock_guard lock(mutex_);
    const uint64_t handle = reinterpret_cast<uint64_t>(surface->view);
    live_[handle] = std::move(surface);
    return handle;
  }
  bool remove(uint64_t handle) {
    std::lock_guard lock(mutex_);
    return live_.erase(handle) != 0;
  }
  void forget(const Context* context) {
    std::lock_guard lock(mutex_);
    std::erase_if(live_, [&](const auto& each) { return each.second->context == context; });
  }

 private:
  std::mutex mutex_;  // guards live_
  std::map<uint64_t, std::shared_ptr<Surface>> live_;
};
Surfaces& surfaces() {
  static auto* all = new Surfaces;  // never destroyed
  return *all;
}

}  // namespace

void forget_surfaces(Context* context) {
  surfaces().forget(context);
}

}  // namespace tessera::softgpu::driver

using namespace tessera::softgpu::driver;  // entry points are global by nature

CUresult cuSurfObjectCreate(CUsurfObject* pSurfObject, const CUDA_RESOURCE_DESC* pResDesc) {
  TS_CONTEXT(cuSurfObjectCreate, context);
  if (!pSurfObject || !pResDesc || pResDesc->resType != CU_RESOURCE_TYPE_ARRAY || pResDesc->flags)
    return CUDA_ERROR_INVALID_VALUE;
  const std::shared_ptr<Array> array = find_array(pResDesc->res.array.hArray);
  if (!array) return CUDA_ERROR_INVALID_HANDLE;
  if (!(array->descriptor.Flags & CUDA_ARRAY3D_SURFACE_LDST)) return CUDA_ERROR_INVALID_VALUE;
  auto made = std::make_shared<Surface>();
  made->context = context.get();
  made->resource = *pResDesc;
  made->keeps = array->memory;
  if (!made->publish(array->surface_view())) return CUDA_ERROR_OUT_OF_MEMORY;
  *pSurfObject = surfaces().add(std::move(made));
  return CUDA_SUCCESS;
}
CUresult cuSurfObjectDestroy(CUsurfObject surfObject) {
  TS_CONTEXT(cuSurfObjectDestroy, context);
  return surfaces().remove(surfObject) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuSurfObjectGetResourceDesc(CUDA_RESOURCE_DESC* out, CUsurfObject surfObject) {
  TS_CONTEXT(cuSurfObjectGetResourceDesc, context);
  const std::shared_ptr<Surface> mine = surfaces().find(surfObject);
  if (!out || !mine) return CUDA_ERROR_INVALID_VALUE;
  *out = mine->resource;
  return CUDA_SUCCESS;
}
