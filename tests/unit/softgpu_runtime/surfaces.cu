// Surface objects from the host's call to the device's access, which nvcc compiles.
#include <vector>

#include "checks.h"

namespace {

__global__ void paint(cudaSurfaceObject_t s, int width, int height) {
  const int x = threadIdx.x, y = threadIdx.y;
  if (x < width && y < height) surf2Dwrite(100.0f * y + x, s, x * 4, y);
}
// Each element becomes the sum of itself and its right neighbour, which at the border is itself.
__global__ void blend(cudaSurfaceObject_t s, float* out, int width, int height) {
  const int x = threadIdx.x, y = threadIdx.y;
  if (x >= width || y >= height) return;
  const float mine = surf2Dread<float>(s, x * 4, y),
              right = surf2Dread<float>(s, (x + 1) * 4, y, cudaBoundaryModeClamp);
  out[y * width + x] = mine + right;
}

constexpr int kWidth = 13, kHeight = 7;

// A kernel writes through a surface; the next reads it through that.
void surfaces() {
  const cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
  cudaArray_t array = nullptr;
  OK(cudaMallocArray(&array, &format, kWidth, kHeight, cudaArraySurfaceLoadStore));
  cudaResourceDesc resource = {};
  resource.resType = cudaResourceTypeArray;
  resource.res.array.array = array;
  cudaSurfaceObject_t surface = 0;
  OK(cudaCreateSurfaceObject(&surface, &resource));
  std::vector<float> image(kWidth * kHeight), sums(image.size());
  float* out = nullptr;
  OK(cudaMalloc(&out, sums.size() * 4));
  paint<<<1, dim3(16, 8)>>>(surface, kWidth, kHeight);
  blend<<<1, dim3(16, 8)>>>(surface, out, kWidth, kHeight);
  OK(cudaMemcpy(sums.data(), out, sums.size() * 4, cudaMemcpyDeviceToHost));
  OK(cudaMemcpy2DFromArray(image.data(), kWidth * 4, array, 0, 0, kWidth * 4, kHeight,
                           cudaMemcpyDeviceToHost));
  int wrong = 0;
  for (int y = 0; y < kHeight; ++y)
    for (int x = 0; x < kWidth; ++x) {
      const float mine = 100.0f * y + x, right = 100.0f * y + (x + 1 < kWidth ? x + 1 : x);
      wrong += image[y * kWidth + x] != mine || sums[y * kWidth + x] != mine + right;
    }
  EXPECT_EQ(wrong, 0);
  OK(cudaDestroySurfaceObject(surface));
  OK(cudaFreeArray(array));
  OK(cudaFree(out));
}

// There are no textures: the call says so, and changes nothing.
void no_textures() {
  const cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
  cudaResourceDesc resource = {};
  resource.resType = cudaResourceTypeArray;
  OK(cudaMallocArray(&resource.res.array.array, &format, kWidth, kHeight));
  cudaTextureDesc d = {};
  cudaTextureObject_t texture = 7;
  EXPECT_CUDA(cudaErrorNotSupported, cudaCreateTextureObject(&texture, &resource, &d, nullptr));
  EXPECT_CUDA(cudaErrorNotSupported, cudaGetLastError());
  EXPECT_EQ(texture, 7u);
  OK(cudaFreeArray(resource.res.array.array));
}

}  // namespace

int main() {
  surfaces();
  no_textures();
  OK(cudaDeviceSynchronize());
  std::printf("%d failures\n", checks::g_failures);
  return checks::g_failures == 0 ? 0 : 1;
}
