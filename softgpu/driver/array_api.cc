// Entry points of CUDA arrays.
#include <algorithm>
#include <bit>

#include "softgpu/driver/array.h"
#include "softgpu/driver/capture.h"
#include "softgpu/driver/memory.h"
#include "softgpu/driver/state.h"
#include "softgpu/driver/stream.h"
#include "softgpu/faults/faults.h"

namespace tessera::softgpu::driver {
namespace {

constexpr unsigned kKnownFlags = CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_SURFACE_LDST | CUDA_ARRAY3D_CUBEMAP |
                                 CUDA_ARRAY3D_TEXTURE_GATHER | CUDA_ARRAY3D_COLOR_ATTACHMENT;

Registry<Array>& arrays() {
  static auto* registry = new Registry<Array>;  // never destroyed
  return *registry;
}
Registry<MipmappedArray>& mipmapped() {
  static auto* registry = new Registry<MipmappedArray>;
  return *registry;
}

// Returns the bytes of all channels; 0: not one of the eight plain formats with 1, 2 or 4 channels.
uint8_t element_bytes(const CUDA_ARRAY3D_DESCRIPTOR& d) {
  static constexpr struct {
    CUarray_format format;
    uint8_t bytes;
  } kFormats[] = {
      {CU_AD_FORMAT_UNSIGNED_INT8, 1}, {CU_AD_FORMAT_UNSIGNED_INT16, 2}, {CU_AD_FORMAT_UNSIGNED_INT32, 4},
      {CU_AD_FORMAT_SIGNED_INT8, 1},   {CU_AD_FORMAT_SIGNED_INT16, 2},   {CU_AD_FORMAT_SIGNED_INT32, 4},
      {CU_AD_FORMAT_HALF, 2},          {CU_AD_FORMAT_FLOAT, 4},
  };
  if (d.NumChannels != 1 && d.NumChannels != 2 && d.NumChannels != 4) return 0;
  for (const auto& row : kFormats)
    if (row.format == d.Format) return uint8_t(row.bytes * d.NumChannels);
  return 0;
}

// Shape rules of cuArray3DCreate: which of width, height, depth may be zero, and what layers and faces need.
CUresult check(const Device& device, const CUDA_ARRAY3D_DESCRIPTOR& d) {
  if (d.Flags & ~kKnownFlags) {
    const unsigned refused = CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING | CUDA_ARRAY3D_DEPTH_TEXTURE;
    return d.Flags & ~(kKnownFlags | refused) ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_SUPPORTED;
  }
  if (!element_bytes(d) || !d.Width) return CUDA_ERROR_INVALID_VALUE;
  const bool layered = d.Flags & CUDA_ARRAY3D_LAYERED, cube = d.Flags & CUDA_ARRAY3D_CUBEMAP;
  if (cube && (d.Width != d.Height || (layered ? !d.Depth || d.Depth % 6 : d.Depth != 6)))
    return CUDA_ERROR_INVALID_VALUE;
  if (layered && !d.Depth) return CUDA_ERROR_INVALID_VALUE;
  if (!layered && !cube && d.Depth && !d.Height) return CUDA_ERROR_INVALID_VALUE;
  const bool is_3d = d.Depth && !layered && !cube;
  auto limit = [&](int attribute) { return size_t(device.attribute(attribute)); };
  if (is_3d)
    return d.Width <= limit(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_WIDTH) &&
                   d.Height <= limit(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_HEIGHT) &&
                   d.Depth <= limit(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_DEPTH)
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_VALUE;
  const bool fits = d.Width <= limit(d.Height ? CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_WIDTH
                                              : CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_WIDTH) &&
                    d.Height <= limit(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_HEIGHT) &&
                    d.Depth <= limit(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_LAYERS) * (cube ? 6 : 1);
  return fits ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// An array without memory yet.
std::shared_ptr<Array> shape_array(Context* context, const CUDA_ARRAY3D_DESCRIPTOR& d) {
  auto made = std::make_shared<Array>();
  made->context = context;
  made->descriptor = d;
  made->element_bytes = element_bytes(d);
  made->width = uint32_t(d.Width);
  made->height = uint32_t(std::max<size_t>(d.Height, 1));
  made->depth = uint32_t(std::max<size_t>(d.Depth, 1));
  made->row_pitch = uint64_t(made->width) * made->element_bytes;
  made->slice_pitch = made->row_pitch * made->height;
  return made;
}

CUresult take_memory(const std::shared_ptr<Context>& context, uint64_t bytes, std::shared_ptr<void>* memory) {
  if (CUresult unsafe = check_unsafe()) return unsafe;
  if (faults::on_allocation()) return CUDA_ERROR_OUT_OF_MEMORY;
  uint64_t address = 0;
  if (CUresult failed = Memory::get().allocate(MemoryKind::kArray, bytes, context.get(), 0, &address))
    return failed;
  *memory = std::shared_ptr<void>(reinterpret_cast<void*>(address), [](void* begin) {
    Memory::get().release(reinterpret_cast<uint64_t>(begin));
  });
  return CUDA_SUCCESS;
}

CUresult create(CUarray* out, const CUDA_ARRAY3D_DESCRIPTOR& descriptor) {
  std::shared_ptr<Context> context;
  if (CUresult none = current(&context)) return none;
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult bad = check(device_of(*context), descriptor)) return bad;
  std::shared_ptr<Array> made = shape_array(context.get(), descriptor);
  if (CUresult failed = take_memory(context, made->bytes(), &made->memory)) return failed;
  made->begin = reinterpret_cast<uint64_t>(made->memory.get());
  arrays().add(made);
  *out = reinterpret_cast<CUarray>(made.get());
  return CUDA_SUCCESS;
}

CUresult requirements(CUDA_ARRAY_MEMORY_REQUIREMENTS* out, uint64_t bytes, CUdevice device) {
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  if (!find_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  *out = {};
  out->size = bytes;
  out->alignment = 512;
  return CUDA_SUCCESS;
}

}  // namespace

exec::SurfaceView Array::surface_view() const {
  using exec::SurfaceShape;
  const bool layered = descriptor.Flags & CUDA_ARRAY3D_LAYERED;
  exec::SurfaceView view = {exec::kSurfaceMagic, width,         height, depth, begin, row_pitch, slice_pitch,
                            SurfaceShape::k1D,   element_bytes, {}};
  if (descriptor.Flags & CUDA_ARRAY3D_CUBEMAP)
    view.shape = SurfaceShape::kCube;
  else if (layered)
    view.shape = descriptor.Height ? SurfaceShape::k2DLayered : SurfaceShape::k1DLayered;
  else if (descriptor.Depth)
    view.shape = SurfaceShape::k3D;
  else if (descriptor.Height)
    view.shape = SurfaceShape::k2D;
  return view;
}

std::shared_ptr<Array> find_array(CUarray handle) {
  return arrays().find(handle);
}
std::shared_ptr<MipmappedArray> find_mipmapped(CUmipmappedArray handle) {
  return mipmapped().find(handle);
}

void forget_arrays(Context* context) {
  mipmapped().remove_if([&](const MipmappedArray& each) { return each.context == context; });
  arrays().remove_if([&](const Array& each) { return each.context == context; });
}

}  // namespace tessera::softgpu::driver

using namespace tessera::softgpu::driver;  // entry points are global by nature

CUresult cuArray3DCreate_v2(CUarray* pHandle, const CUDA_ARRAY3D_DESCRIPTOR* pAllocateArray) {
  TS_ENTER(cuArray3DCreate_v2);
  return pAllocateArray ? create(pHandle, *pAllocateArray) : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuArray3DCreate(CUarray* pHandle, const CUDA_ARRAY3D_DESCRIPTOR_v1* p) {
  TS_ENTER(cuArray3DCreate);
  return p ? create(pHandle, {p->Width, p->Height, p->Depth, p->Format, p->NumChannels, p->Flags})
           : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuArrayCreate_v2(CUarray* pHandle, const CUDA_ARRAY_DESCRIPTOR* p) {
  TS_ENTER(cuArrayCreate_v2);
  return p ? create(pHandle, {p->Width, p->Height, 0, p->Format, p->NumChannels, 0})
           : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuArrayCreate(CUarray* pHandle, const CUDA_ARRAY_DESCRIPTOR_v1* p) {
  TS_ENTER(cuArrayCreate);
  return p ? create(pHandle, {p->Width, p->Height, 0, p->Format, p->NumChannels, 0})
           : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR* out, CUarray hArray) {
  TS_CONTEXT(cuArray3DGetDescriptor_v2, context);
  const std::shared_ptr<Array> array = find_array(hArray);
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  if (!array) return CUDA_ERROR_INVALID_HANDLE;
  *out = array->descriptor;
  return CUDA_SUCCESS;
}
CUresult cuArray3DGetDescriptor(CUDA_ARRAY3D_DESCRIPTOR_v1* out, CUarray hArray) {
  CUDA_ARRAY3D_DESCRIPTOR d;
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult bad = cuArray3DGetDescriptor_v2(&d, hArray)) return bad;
  *out = {unsigned(d.Width), unsigned(d.Height), unsigned(d.Depth), d.Format, d.NumChannels, d.Flags};
  return CUDA_SUCCESS;
}
CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR* out, CUarray hArray) {
  CUDA_ARRAY3D_DESCRIPTOR d;
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult bad = cuArray3DGetDescriptor_v2(&d, hArray)) return bad;
  *out = {d.Width, d.Height, d.Format, d.NumChannels};
  return CUDA_SUCCESS;
}
CUresult cuArrayGetDescriptor(CUDA_ARRAY_DESCRIPTOR_v1* out, CUarray hArray) {
  CUDA_ARRAY3D_DESCRIPTOR d;
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult bad = cuArray3DGetDescriptor_v2(&d, hArray)) return bad;
  *out = {unsigned(d.Width), unsigned(d.Height), d.Format, d.NumChannels};
  return CUDA_SUCCESS;
}

CUresult cuArrayDestroy(CUarray hArray) {
  TS_ENTER(cuArrayDestroy);
  const std::shared_ptr<Array> array = find_array(hArray);
  if (!array || array->is_level) return CUDA_ERROR_INVALID_HANDLE;
  if (CUresult unsafe = check_unsafe()) return unsafe;
  if (const auto owner = driver().contexts.find(array->context)) (void)synchronize(*owner);
  arrays().remove(hArray);
  return CUDA_SUCCESS;
}

CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS* out, CUarray hArray, CUdevice device) {
  TS_ENTER(cuArrayGetMemoryRequirements);
  const std::shared_ptr<Array> array = find_array(hArray);
  return array ? requirements(out, array->bytes(), device) : CUDA_ERROR_INVALID_HANDLE;
}
// No multi-planar formats, no sparse arrays.
CUresult cuArrayGetPlane(CUarray* pPlaneArray, CUarray hArray, unsigned int) {
  TS_ENTER(cuArrayGetPlane);
  if (!find_array(hArray)) return CUDA_ERROR_INVALID_HANDLE;
  (void)pPlaneArray;
  return CUDA_ERROR_INVALID_VALUE;
}
CUresult cuArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES*, CUarray hArray) {
  TS_ENTER(cuArrayGetSparseProperties);
  return find_array(hArray) ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray* pHandle, const CUDA_ARRAY3D_DESCRIPTOR* desc,
                                unsigned int numMipmapLevels) {
  TS_CONTEXT(cuMipmappedArrayCreate, context);
  if (!pHandle || !desc || !numMipmapLevels) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult bad = check(device_of(*context), *desc)) return bad;
  const bool layers = desc->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP);
  const size_t longest = std::max({desc->Width, desc->Height, layers ? size_t(0) : desc->Depth});
  const unsigned n = std::min(numMipmapLevels, unsigned(std::bit_width(longest)));  // clamped, as documented
  auto made = std::make_shared<MipmappedArray>();
  made->context = context.get();
  uint64_t bytes = 0;
  CUDA_ARRAY3D_DESCRIPTOR level = *desc;
  for (unsigned i = 0; i < n; ++i) {
    std::shared_ptr<Array> array = shape_array(context.get(), level);
    array->is_level = true;
    array->begin = bytes;  // for the moment
    bytes += (array->bytes() + 511) / 512 * 512;
    made->levels.push_back(std::move(array));
    level.Width = std::max<size_t>(level.Width / 2, 1);
    if (level.Height) level.Height = std::max<size_t>(level.Height / 2, 1);
    if (level.Depth && !layers) level.Depth = std::max<size_t>(level.Depth / 2, 1);
  }
  std::shared_ptr<void> memory;
  if (CUresult failed = take_memory(context, bytes, &memory)) return failed;
  for (const auto& array : made->levels) {
    array->begin += reinterpret_cast<uint64_t>(memory.get());
    array->memory = memory;
    arrays().add(array);
  }
  mipmapped().add(made);
  *pHandle = reinterpret_cast<CUmipmappedArray>(made.get());
  return CUDA_SUCCESS;
}

CUresult cuMipmappedArrayGetLevel(CUarray* pLevelArray, CUmipmappedArray hMipmappedArray,
                                  unsigned int level) {
  TS_ENTER(cuMipmappedArrayGetLevel);
  const std::shared_ptr<MipmappedArray> mine = find_mipmapped(hMipmappedArray);
  if (!mine) return CUDA_ERROR_INVALID_HANDLE;
  if (!pLevelArray || level >= mine->levels.size()) return CUDA_ERROR_INVALID_VALUE;
  *pLevelArray = reinterpret_cast<CUarray>(mine->levels[level].get());
  return CUDA_SUCCESS;
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray hMipmappedArray) {
  TS_ENTER(cuMipmappedArrayDestroy);
  const std::shared_ptr<MipmappedArray> mine = find_mipmapped(hMipmappedArray);
  if (!mine) return CUDA_ERROR_INVALID_HANDLE;
  if (CUresult unsafe = check_unsafe()) return unsafe;
  if (const auto owner = driver().contexts.find(mine->context)) (void)synchronize(*owner);
  for (const auto& level : mine->levels) arrays().remove(level.get());
  mipmapped().remove(mine.get());
  return CUDA_SUCCESS;
}
CUresult cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS* out, CUmipmappedArray handle,
                                               CUdevice device) {
  TS_ENTER(cuMipmappedArrayGetMemoryRequirements);
  const std::shared_ptr<MipmappedArray> mine = find_mipmapped(handle);
  if (!mine) return CUDA_ERROR_INVALID_HANDLE;
  uint64_t bytes = 0;
  for (const auto& level : mine->levels) bytes += (level->bytes() + 511) / 512 * 512;
  return requirements(out, bytes, device);
}
CUresult cuMipmappedArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES*, CUmipmappedArray handle) {
  TS_ENTER(cuMipmappedArrayGetSparseProperties);
  return find_mipmapped(handle) ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
}
