// CUDA arrays and surface objects: storage, copies, limits, and the page that device code sees.
#include <fstream>
#include <iterator>
#include <numeric>

#include "softgpu/exec/surface_view.h"
#include "support.h"

namespace softgpu_driver_test {
namespace {

using tessera::softgpu::exec::SurfaceShape;
using tessera::softgpu::exec::SurfaceView;

class Images : public Cuda {
 protected:
  static CUarray create(size_t width, size_t height, size_t depth, unsigned flags = 0,
                        CUarray_format format = CU_AD_FORMAT_UNSIGNED_INT32, unsigned channels = 1) {
    const CUDA_ARRAY3D_DESCRIPTOR d = {width, height, depth, format, channels, flags};
    CUarray array = nullptr;
    EXPECT_CU(cuArray3DCreate(&array, &d));
    return array;
  }
  static std::vector<uint32_t> numbers(size_t n) {
    std::vector<uint32_t> v(n);
    std::iota(v.begin(), v.end(), 1u);
    return v;
  }
  static CUDA_RESOURCE_DESC resource(CUarray array) {
    CUDA_RESOURCE_DESC r = {};
    r.resType = CU_RESOURCE_TYPE_ARRAY;
    r.res.array.hArray = array;
    return r;
  }
};

TEST_F(Images, DescriptorsAndDestruction) {
  CUarray a = create(7, 5, 3, CUDA_ARRAY3D_SURFACE_LDST, CU_AD_FORMAT_HALF, 4);
  CUDA_ARRAY3D_DESCRIPTOR d3;
  CUDA_ARRAY_DESCRIPTOR d;
  EXPECT_CU(cuArray3DGetDescriptor(&d3, a));
  EXPECT_EQ(d3.Width, 7u);
  EXPECT_EQ(d3.Depth, 3u);
  EXPECT_EQ(d3.Format, CU_AD_FORMAT_HALF);
  EXPECT_EQ(d3.Flags, unsigned(CUDA_ARRAY3D_SURFACE_LDST));
  EXPECT_CU(cuArrayGetDescriptor(&d, a));
  EXPECT_EQ(d.Height, 5u);
  EXPECT_EQ(d.NumChannels, 4u);
  CUDA_ARRAY_MEMORY_REQUIREMENTS need;
  EXPECT_CU(cuArrayGetMemoryRequirements(&need, a, 0));
  EXPECT_EQ(need.size, 7u * 5 * 3 * 8);
  size_t before, after, total;
  EXPECT_CU(cuMemGetInfo(&before, &total));
  EXPECT_CU(cuArrayDestroy(a));
  EXPECT_CU(cuMemGetInfo(&after, &total));
  EXPECT_EQ(after - before, 7u * 5 * 3 * 8);
  EXPECT_EQ(CUDA_ERROR_INVALID_HANDLE, cuArrayDestroy(a));
  EXPECT_EQ(CUDA_ERROR_INVALID_HANDLE, cuArrayGetDescriptor(&d, a));
}

TEST_F(Images, ShapesThatAreRefused) {
  const CUarray_format u8 = CU_AD_FORMAT_UNSIGNED_INT8;
  const struct {
    CUDA_ARRAY3D_DESCRIPTOR d;
    CUresult code;
  } rows[] = {
      {{0, 1, 0, u8, 1, 0}, CUDA_ERROR_INVALID_VALUE},
      {{8, 8, 0, u8, 3, 0}, CUDA_ERROR_INVALID_VALUE},
      {{8, 8, 0, CUarray_format(0x77), 1, 0}, CUDA_ERROR_INVALID_VALUE},
      {{8, 0, 4, u8, 1, 0}, CUDA_ERROR_INVALID_VALUE},                     // depth without height
      {{8, 4, 6, u8, 1, CUDA_ARRAY3D_CUBEMAP}, CUDA_ERROR_INVALID_VALUE},  // faces are squares
      {{8, 8, 5, u8, 1, CUDA_ARRAY3D_CUBEMAP}, CUDA_ERROR_INVALID_VALUE},
      {{8, 8, 0, u8, 1, CUDA_ARRAY3D_LAYERED}, CUDA_ERROR_INVALID_VALUE},
      {{1 << 20, 0, 0, u8, 1, 0}, CUDA_ERROR_INVALID_VALUE},  // wider than the device allows
      {{8, 8, 0, u8, 1, CUDA_ARRAY3D_SPARSE}, CUDA_ERROR_NOT_SUPPORTED},
      {{8, 8, 0, u8, 1, 0x10000}, CUDA_ERROR_INVALID_VALUE},
  };
  for (const auto& row : rows) {
    CUarray a;
    EXPECT_EQ(row.code, cuArray3DCreate(&a, &row.d))
        << row.d.Width << "x" << row.d.Height << "x" << row.d.Depth;
  }
}

TEST_F(Images, CopiesOfRowsAndBoxes) {
  CUarray a = create(8, 4, 3);
  const std::vector<uint32_t> source = numbers(8 * 4 * 3);
  CUDA_MEMCPY3D in = {};
  in.srcMemoryType = CU_MEMORYTYPE_HOST, in.srcHost = source.data(), in.srcPitch = 32, in.srcHeight = 4;
  in.dstMemoryType = CU_MEMORYTYPE_ARRAY, in.dstArray = a;
  in.WidthInBytes = 32, in.Height = 4, in.Depth = 3;
  EXPECT_CU(cuMemcpy3D(&in));
  // The box (2..5, 1..2, 1..2) comes out, asynchronously, into device memory with a pitch.
  const CUdeviceptr p = alloc(4096);
  CUDA_MEMCPY3D out = {};
  out.srcMemoryType = CU_MEMORYTYPE_ARRAY, out.srcArray = a;
  out.srcXInBytes = 8, out.srcY = 1, out.srcZ = 1;
  out.dstMemoryType = CU_MEMORYTYPE_DEVICE, out.dstDevice = p, out.dstPitch = 64, out.dstHeight = 2;
  out.WidthInBytes = 16, out.Height = 2, out.Depth = 2;
  EXPECT_CU(cuMemcpy3DAsync(&out, nullptr));
  const std::vector<uint32_t> got = read(p, 64);
  for (size_t z = 0; z < 2; ++z)
    for (size_t y = 0; y < 2; ++y)
      for (size_t x = 0; x < 4; ++x)
        EXPECT_EQ(got[z * 32 + y * 16 + x], source[(z + 1) * 32 + (y + 1) * 8 + x + 2]);
  // Between arrays, and what does not fit.
  CUarray b = create(4, 4, 0);
  CUDA_MEMCPY2D across = {};
  across.srcMemoryType = across.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  across.srcArray = a, across.dstArray = b;
  across.WidthInBytes = 16, across.Height = 4;
  EXPECT_CU(cuMemcpy2D(&across));
  uint32_t row[4];
  EXPECT_CU(cuMemcpyAtoH(row, b, 16, 16));
  EXPECT_EQ(row[0], source[8]);
  EXPECT_EQ(row[3], source[11]);
  across.WidthInBytes = 20;
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D(&across));
  across.WidthInBytes = 16, across.srcY = 1;
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D(&across));
  across.srcY = 0, across.srcXInBytes = 2;  // not a whole element
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D(&across));
  across.srcXInBytes = 0, across.srcArray = reinterpret_cast<CUarray>(&across);
  EXPECT_EQ(CUDA_ERROR_INVALID_HANDLE, cuMemcpy2D(&across));
  in.srcLOD = 1;
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMemcpy3D(&in));
}

TEST_F(Images, LinearCopies) {
  CUarray a = create(64, 0, 0), b = create(64, 0, 0);
  const std::vector<uint32_t> source = numbers(64);
  const CUdeviceptr p = alloc(256);
  EXPECT_CU(cuMemcpyHtoA(a, 0, source.data(), 256));
  EXPECT_CU(cuMemcpyAtoD(p, a, 64, 64));
  EXPECT_EQ(read(p, 16), std::vector<uint32_t>(source.begin() + 16, source.begin() + 32));
  EXPECT_CU(cuMemcpyDtoA(b, 128, p, 64));
  EXPECT_CU(cuMemcpyAtoA(b, 0, b, 128, 64));
  uint32_t words[16];
  EXPECT_CU(cuMemcpyAtoHAsync(words, b, 0, 64, nullptr));
  EXPECT_EQ(words[15], 32u);
  EXPECT_CU(cuMemcpyHtoAAsync(b, 0, source.data(), 4, nullptr));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoA(a, 4, source.data(), 256));
  EXPECT_EQ(CUDA_ERROR_INVALID_HANDLE, cuMemcpyHtoA(nullptr, 0, source.data(), 4));
}

TEST_F(Images, KernelsCannotReachThemByAddress) {
  const CUDA_RESOURCE_DESC r = resource(create(64, 0, 0, CUDA_ARRAY3D_SURFACE_LDST));
  CUsurfObject surface;
  EXPECT_CU(cuSurfObjectCreate(&surface, &r));
  const uint64_t base = reinterpret_cast<const SurfaceView*>(surface)->base;
  EXPECT_CU(launch(function("fill"), 1, 32, nullptr, CUdeviceptr(base), 1u, 16u));
  EXPECT_EQ(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
}

TEST_F(Images, MipmapLevels) {
  const CUDA_ARRAY3D_DESCRIPTOR d = {16, 4, 0, CU_AD_FORMAT_FLOAT, 2, 0};
  CUmipmappedArray mipmap;
  EXPECT_CU(cuMipmappedArrayCreate(&mipmap, &d, 99));  // as many as there are
  CUarray level;
  CUDA_ARRAY_DESCRIPTOR got;
  EXPECT_CU(cuMipmappedArrayGetLevel(&level, mipmap, 4));
  EXPECT_CU(cuArrayGetDescriptor(&got, level));
  EXPECT_EQ(got.Width, 1u);
  EXPECT_EQ(got.Height, 1u);
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMipmappedArrayGetLevel(&level, mipmap, 5));
  EXPECT_CU(cuMipmappedArrayGetLevel(&level, mipmap, 1));
  EXPECT_EQ(CUDA_ERROR_INVALID_HANDLE, cuArrayDestroy(level));
  const float values[2] = {1.5f, 2.5f};
  EXPECT_CU(cuMemcpyHtoA(level, 8, values, 8));
  float back[2];
  EXPECT_CU(cuMemcpyAtoH(back, level, 8, 8));
  EXPECT_EQ(back[1], 2.5f);
  EXPECT_CU(cuMipmappedArrayDestroy(mipmap));
  EXPECT_EQ(CUDA_ERROR_INVALID_HANDLE, cuMipmappedArrayGetLevel(&level, mipmap, 0));
}

TEST_F(Images, SurfacesNeedTheFlag) {
  CUarray plain = create(8, 8, 0),
          writable = create(8, 4, 6, CUDA_ARRAY3D_SURFACE_LDST | CUDA_ARRAY3D_LAYERED);
  CUDA_RESOURCE_DESC r = resource(plain);
  CUsurfObject surface;
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuSurfObjectCreate(&surface, &r));
  r = resource(writable);
  EXPECT_CU(cuSurfObjectCreate(&surface, &r));
  const auto* page = reinterpret_cast<const SurfaceView*>(surface);
  EXPECT_EQ(page->magic, tessera::softgpu::exec::kSurfaceMagic);
  EXPECT_EQ(page->shape, SurfaceShape::k2DLayered);
  EXPECT_EQ(page->element_bytes, 4);
  EXPECT_EQ(page->depth, 6u);
  EXPECT_EQ(page->slice_pitch, 8u * 4 * 4);
  CUDA_RESOURCE_DESC same;
  EXPECT_CU(cuSurfObjectGetResourceDesc(&same, surface));
  EXPECT_EQ(same.res.array.hArray, writable);
  EXPECT_CU(cuSurfObjectDestroy(surface));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuSurfObjectDestroy(surface));
}

// Both ends in one kernel that nvcc compiled. The other one of its module reads a texture.
TEST_F(Images, AKernelOfNvccReadsAndWrites) {
  constexpr unsigned kWidth = 16, kHeight = 6;
  std::vector<float> source(kWidth * kHeight), painted(source.size());
  for (size_t i = 0; i < source.size(); ++i) source[i] = float(i) / 4;
  CUarray from = create(kWidth, kHeight, 0, CUDA_ARRAY3D_SURFACE_LDST, CU_AD_FORMAT_FLOAT),
          to = create(kWidth, kHeight, 0, CUDA_ARRAY3D_SURFACE_LDST, CU_AD_FORMAT_FLOAT);
  CUDA_MEMCPY2D copy = {};
  copy.srcMemoryType = CU_MEMORYTYPE_HOST, copy.srcHost = source.data();
  copy.dstMemoryType = CU_MEMORYTYPE_ARRAY, copy.dstArray = from;
  copy.WidthInBytes = kWidth * 4, copy.Height = kHeight;
  ASSERT_CU(cuMemcpy2D(&copy));
  CUDA_RESOURCE_DESC r = resource(from), w = resource(to);
  CUsurfObject source_surface, surface;
  ASSERT_CU(cuSurfObjectCreate(&source_surface, &r));
  ASSERT_CU(cuSurfObjectCreate(&surface, &w));
  std::ifstream in(TESSERA_TEST_IMAGES "/images.fatbin", std::ios::binary);
  const std::vector<char> image{std::istreambuf_iterator<char>(in), {}};
  CUmodule images;
  CUfunction repaint;
  ASSERT_CU(cuModuleLoadData(&images, image.data()));
  ASSERT_CU(cuModuleGetFunction(&repaint, images, "repaint"));
  int width = kWidth, height = kHeight;
  void* params[] = {&source_surface, &surface, &width, &height};
  ASSERT_CU(cuLaunchKernel(repaint, 2, 1, 1, 8, 8, 1, 0, nullptr, params, nullptr));
  CUDA_MEMCPY2D back = {};
  back.srcMemoryType = CU_MEMORYTYPE_ARRAY, back.srcArray = to;
  back.dstMemoryType = CU_MEMORYTYPE_HOST, back.dstHost = painted.data();
  back.WidthInBytes = kWidth * 4, back.Height = kHeight;
  ASSERT_CU(cuMemcpy2D(&back));
  for (unsigned y = 0; y < kHeight; ++y)
    for (unsigned x = 0; x < kWidth; ++x)
      EXPECT_EQ(painted[y * kWidth + x], source[y * kWidth + (x + 4) % kWidth]) << x << ' ' << y;
  // There are no textures.
  CUDA_TEXTURE_DESC t = {};
  CUtexObject texture;
  CUfunction sample;
  EXPECT_EQ(CUDA_ERROR_NOT_SUPPORTED, cuTexObjectCreate(&texture, &r, &t, nullptr));
  EXPECT_EQ(CUDA_ERROR_NOT_SUPPORTED, cuModuleGetFunction(&sample, images, "sample"));
  // The surface is gone: its handle leads nowhere.
  ASSERT_CU(cuSurfObjectDestroy(source_surface));
  ASSERT_CU(cuLaunchKernel(repaint, 2, 1, 1, 8, 8, 1, 0, nullptr, params, nullptr));
  EXPECT_NE(CUDA_SUCCESS, cuCtxSynchronize());
}

}  // namespace
}  // namespace softgpu_driver_test
