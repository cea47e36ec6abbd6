// Texture and surface objects: what they were made from, and the page that device code sees (texture.h).
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "softgpu/driver/array.h"
#include "softgpu/driver/memory.h"
#include "softgpu/driver/state.h"

namespace tessera::softgpu::driver {
namespace {

constexpr unsigned kTextureFlags = CU_TRSF_READ_AS_INTEGER | CU_TRSF_NORMALIZED_COORDINATES | CU_TRSF_SRGB |
                                   CU_TRSF_DISABLE_TRILINEAR_OPTIMIZATION | CU_TRSF_SEAMLESS_CUBEMAP;

struct ImageObject {
  Context* context = nullptr;
  CUDA_RESOURCE_DESC resource = {};
  CUDA_TEXTURE_DESC texture = {};
  CUDA_RESOURCE_VIEW_DESC view_desc = {};
  bool has_view = false;
  std::shared_ptr<void> keeps;  // memory of the arrays
  TextureView* view = nullptr;  // the handle; in the device's map

  ~ImageObject() {
    if (!view) return;
    Memory::get().map(device).remove(reinterpret_cast<uint64_t>(view));
    std::free(view);
  }
  bool publish(const TextureView& what) {
    view = static_cast<TextureView*>(std::aligned_alloc(64, (sizeof what + 63) / 64 * 64));
    if (!view) return false;
    std::memcpy(view, &what, sizeof what);
    device = context->device;
    Memory::get().map(device).add(reinterpret_cast<uint64_t>(view), sizeof what, false);
    return true;
  }
  int device = 0;
};

// By handle, which is the view's address.
class Objects {
 public:
  std::shared_ptr<ImageObject> find(uint64_t handle) {
    std::lock_guard lock(mutex_);
    const auto it = live_.find(handle);
    return it == live_.end() ? nullptr : it->second;
  }
  uint64_t add(std::shared_ptr<ImageObject> object) {
    std::lock_guard lock(mutex_);
    const uint64_t handle = reinterpret_cast<uint64_t>(object->view);
    live_[handle] = std::move(object);
    return handle;
  }
  bool remove(uint64_t handle, uint32_t magic) {
    std::lock_guard lock(mutex_);
    const auto it = live_.find(handle);
    if (it == live_.end() || it->second->view->magic != magic) return false;
    live_.erase(it);
    return true;
  }
  void forget(const Context* context) {
    std::lock_guard lock(mutex_);
    std::erase_if(live_, [&](const auto& each) { return each.second->context == context; });
  }

 private:
  std::mutex mutex_;  // guards live_
  std::map<uint64_t, std::shared_ptr<ImageObject>> live_;
};
Objects& objects() {
  static auto* all = new Objects;  // never destroyed
  return *all;
}

void from_array(const Array& array, TextureView* view) {
  view->shape = array.shape();
  view->element = array.format.element;
  view->channels = array.format.channels;
  view->element_bytes = array.format.bytes;
  view->n_levels = 1;
  view->levels[0] = array.level();
}

CUresult from_resource(const Device& device, const CUDA_RESOURCE_DESC& r, TextureView* view,
                       std::shared_ptr<void>* keeps) {
  if (r.flags) return CUDA_ERROR_INVALID_VALUE;
  auto attribute = [&](int number) { return uint64_t(device.attribute(number)); };
  auto linear = [&](CUdeviceptr base, CUarray_format format, unsigned channels) {
    ElementFormat element;
    if (!element_format(format, channels, &element)) return false;
    view->element = element.element;
    view->channels = element.channels;
    view->element_bytes = element.bytes;
    view->n_levels = 1;
    return base && base % attribute(CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT) == 0;
  };
  switch (int(r.resType)) {
    case CU_RESOURCE_TYPE_ARRAY: {
      const std::shared_ptr<Array> array = find_array(r.res.array.hArray);
      if (!array) return CUDA_ERROR_INVALID_HANDLE;
      from_array(*array, view);
      *keeps = array->memory;
      return CUDA_SUCCESS;
    }
    case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY: {
      const std::shared_ptr<MipmappedArray> mipmapped = find_mipmapped(r.res.mipmap.hMipmappedArray);
      if (!mipmapped) return CUDA_ERROR_INVALID_HANDLE;
      from_array(*mipmapped->levels.front(), view);
      view->n_levels = uint32_t(std::min<size_t>(mipmapped->levels.size(), kMaxLevels));
      for (uint32_t i = 0; i < view->n_levels; ++i) view->levels[i] = mipmapped->levels[i]->level();
      *keeps = mipmapped->levels.front()->memory;
      return CUDA_SUCCESS;
    }
    case CU_RESOURCE_TYPE_LINEAR: {
      const auto& l = r.res.linear;
      if (!linear(l.devPtr, l.format, l.numChannels)) return CUDA_ERROR_INVALID_VALUE;
      const uint64_t n = l.sizeInBytes / view->element_bytes;
      if (!n || n > attribute(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LINEAR_WIDTH) ||
          !Memory::get().contains(l.devPtr, l.sizeInBytes, Access::kRead))
        return CUDA_ERROR_INVALID_VALUE;
      view->shape = TextureShape::kLinear;
      view->levels[0] = {l.devPtr, l.sizeInBytes, l.sizeInBytes, uint32_t(n), 1, 1, 0};
      return CUDA_SUCCESS;
    }
    case CU_RESOURCE_TYPE_PITCH2D: {
      const auto& p = r.res.pitch2D;
      if (!linear(p.devPtr, p.format, p.numChannels) || !p.width || !p.height)
        return CUDA_ERROR_INVALID_VALUE;
      if (p.pitchInBytes % attribute(CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT) ||
          p.pitchInBytes > attribute(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_PITCH) ||
          p.width > attribute(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_WIDTH) ||
          p.height > attribute(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_HEIGHT) ||
          p.width * view->element_bytes > p.pitchInBytes)
        return CUDA_ERROR_INVALID_VALUE;
      const uint64_t bytes = (p.height - 1) * p.pitchInBytes + p.width * view->element_bytes;
      if (!Memory::get().contains(p.devPtr, bytes, Access::kRead)) return CUDA_ERROR_INVALID_VALUE;
      view->shape = TextureShape::kPitch2D;
      view->levels[0] = {
          p.devPtr, p.pitchInBytes, p.pitchInBytes * p.height, uint32_t(p.width), uint32_t(p.height), 1, 0};
      return CUDA_SUCCESS;
    }
  }
  return CUDA_ERROR_INVALID_VALUE;
}

bool is_32_bit_integer(TextureElement e) {
  return e == TextureElement::kU32 || e == TextureElement::kS32;
}
bool is_float(TextureElement e) {
  return e == TextureElement::kF16 || e == TextureElement::kF32;
}

CUresult sample_with(const CUDA_TEXTURE_DESC& t, bool mipmapped, TextureView* view) {
  if (t.flags & ~kTextureFlags) return CUDA_ERROR_INVALID_VALUE;
  for (int i = 0; i < 3; ++i) {
    if (unsigned(t.addressMode[i]) > CU_TR_ADDRESS_MODE_BORDER) return CUDA_ERROR_INVALID_VALUE;
    view->address[i] = TextureAddress(t.addressMode[i]);
    // Wrap and mirror mean something for normalised coordinates only; others are clamped, as documented.
    const bool by_fraction = t.flags & CU_TRSF_NORMALIZED_COORDINATES;
    if (!by_fraction &&
        (view->address[i] == TextureAddress::kWrap || view->address[i] == TextureAddress::kMirror))
      view->address[i] = TextureAddress::kClamp;
  }
  if (unsigned(t.filterMode) > CU_TR_FILTER_MODE_LINEAR ||
      unsigned(t.mipmapFilterMode) > CU_TR_FILTER_MODE_LINEAR)
    return CUDA_ERROR_INVALID_VALUE;
  view->linear_filter = t.filterMode == CU_TR_FILTER_MODE_LINEAR;
  view->linear_mip_filter = t.mipmapFilterMode == CU_TR_FILTER_MODE_LINEAR;
  view->normalized_coordinates = (t.flags & CU_TRSF_NORMALIZED_COORDINATES) != 0;
  view->read_as_integer =
      !is_float(view->element) && ((t.flags & CU_TRSF_READ_AS_INTEGER) || is_32_bit_integer(view->element));
  view->srgb = (t.flags & CU_TRSF_SRGB) != 0;
  // Between integers there is nothing to interpolate; linear memory is not filtered at all.
  if (view->linear_filter && (view->read_as_integer || view->shape == TextureShape::kLinear))
    return CUDA_ERROR_INVALID_VALUE;
  if (mipmapped && !view->normalized_coordinates) return CUDA_ERROR_INVALID_VALUE;
  view->max_anisotropy = std::clamp(t.maxAnisotropy, 1u, 16u);
  view->level_bias = t.mipmapLevelBias;
  view->min_level = t.minMipmapLevelClamp;
  view->max_level = t.maxMipmapLevelClamp;
  std::memcpy(view->border, t.borderColor, sizeof view->border);
  return CUDA_SUCCESS;
}

// A view shows part of the levels and layers; of formats only the resource's own.
CUresult restrict_to(const CUDA_RESOURCE_VIEW_DESC& v, const CUDA_RESOURCE_DESC& r, TextureView* view) {
  if (r.resType != CU_RESOURCE_TYPE_ARRAY && r.resType != CU_RESOURCE_TYPE_MIPMAPPED_ARRAY)
    return CUDA_ERROR_INVALID_VALUE;
  if (v.format >= CU_RES_VIEW_FORMAT_UNSIGNED_BC1) return CUDA_ERROR_NOT_SUPPORTED;
  if (v.lastMipmapLevel < v.firstMipmapLevel || v.lastMipmapLevel >= view->n_levels ||
      v.lastLayer < v.firstLayer)
    return CUDA_ERROR_INVALID_VALUE;
  const uint32_t n = v.lastMipmapLevel - v.firstMipmapLevel + 1;
  std::copy_n(view->levels + v.firstMipmapLevel, n, view->levels);
  view->n_levels = n;
  const bool layered = view->shape == TextureShape::k1DLayered || view->shape == TextureShape::k2DLayered ||
                       view->shape == TextureShape::kCubeLayered;
  if (!layered) return v.lastLayer ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
  const uint32_t faces = view->shape == TextureShape::kCubeLayered ? 6 : 1;
  for (uint32_t i = 0; i < n; ++i) {
    TextureLevel& level = view->levels[i];
    if (v.lastLayer >= level.depth / faces) return CUDA_ERROR_INVALID_VALUE;
    level.base += v.firstLayer * faces * level.slice_pitch;
    level.depth = (v.lastLayer - v.firstLayer + 1) * faces;
  }
  return CUDA_SUCCESS;
}

template <class T>
CUresult give(T* out, uint64_t handle, uint32_t magic, const T ImageObject::*field) {
  const std::shared_ptr<ImageObject> mine = objects().find(handle);
  if (!out || !mine || mine->view->magic != magic) return CUDA_ERROR_INVALID_VALUE;
  *out = (*mine).*field;
  return CUDA_SUCCESS;
}

}  // namespace

void forget_textures(Context* context) {
  objects().forget(context);
}

}  // namespace tessera::softgpu::driver

using namespace tessera::softgpu::driver;  // entry points are global by nature

CUresult cuTexObjectCreate(CUtexObject* pTexObject, const CUDA_RESOURCE_DESC* pResDesc,
                           const CUDA_TEXTURE_DESC* pTexDesc, const CUDA_RESOURCE_VIEW_DESC* pResViewDesc) {
  TS_CONTEXT(cuTexObjectCreate, context);
  if (!pTexObject || !pResDesc || !pTexDesc) return CUDA_ERROR_INVALID_VALUE;
  auto made = std::make_shared<ImageObject>();
  made->context = context.get();
  made->resource = *pResDesc;
  made->texture = *pTexDesc;
  TextureView view = {};
  view.magic = kTextureMagic;
  if (CUresult bad = from_resource(device_of(*context), *pResDesc, &view, &made->keeps)) return bad;
  if (CUresult bad = sample_with(*pTexDesc, pResDesc->resType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY, &view))
    return bad;
  if (pResViewDesc) {
    made->has_view = true;
    made->view_desc = *pResViewDesc;
    if (CUresult bad = restrict_to(*pResViewDesc, *pResDesc, &view)) return bad;
  }
  if (!made->publish(view)) return CUDA_ERROR_OUT_OF_MEMORY;
  *pTexObject = objects().add(std::move(made));
  return CUDA_SUCCESS;
}

CUresult cuTexObjectDestroy(CUtexObject texObject) {
  TS_CONTEXT(cuTexObjectDestroy, context);
  return objects().remove(texObject, kTextureMagic) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuTexObjectGetResourceDesc(CUDA_RESOURCE_DESC* out, CUtexObject texObject) {
  TS_CONTEXT(cuTexObjectGetResourceDesc, context);
  return give(out, texObject, kTextureMagic, &ImageObject::resource);
}
CUresult cuTexObjectGetTextureDesc(CUDA_TEXTURE_DESC* out, CUtexObject texObject) {
  TS_CONTEXT(cuTexObjectGetTextureDesc, context);
  return give(out, texObject, kTextureMagic, &ImageObject::texture);
}
CUresult cuTexObjectGetResourceViewDesc(CUDA_RESOURCE_VIEW_DESC* out, CUtexObject texObject) {
  TS_CONTEXT(cuTexObjectGetResourceViewDesc, context);
  const std::shared_ptr<ImageObject> mine = objects().find(texObject);
  if (mine && !mine->has_view) return CUDA_ERROR_INVALID_VALUE;  // none was given
  return give(out, texObject, kTextureMagic, &ImageObject::view_desc);
}

CUresult cuSurfObjectCreate(CUsurfObject* pSurfObject, const CUDA_RESOURCE_DESC* pResDesc) {
  TS_CONTEXT(cuSurfObjectCreate, context);
  if (!pSurfObject || !pResDesc || pResDesc->resType != CU_RESOURCE_TYPE_ARRAY)
    return CUDA_ERROR_INVALID_VALUE;
  auto made = std::make_shared<ImageObject>();
  made->context = context.get();
  made->resource = *pResDesc;
  TextureView view = {};
  view.magic = kSurfaceMagic;
  if (CUresult bad = from_resource(device_of(*context), *pResDesc, &view, &made->keeps)) return bad;
  if (!(find_array(pResDesc->res.array.hArray)->descriptor.Flags & CUDA_ARRAY3D_SURFACE_LDST))
    return CUDA_ERROR_INVALID_VALUE;
  if (!made->publish(view)) return CUDA_ERROR_OUT_OF_MEMORY;
  *pSurfObject = objects().add(std::move(made));
  return CUDA_SUCCESS;
}
CUresult cuSurfObjectDestroy(CUsurfObject surfObject) {
  TS_CONTEXT(cuSurfObjectDestroy, context);
  return objects().remove(surfObject, kSurfaceMagic) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuSurfObjectGetResourceDesc(CUDA_RESOURCE_DESC* out, CUsurfObject surfObject) {
  TS_CONTEXT(cuSurfObjectGetResourceDesc, context);
  return give(out, surfObject, kSurfaceMagic, &ImageObject::resource);
}
