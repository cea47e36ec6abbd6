// Texture and surface objects from the host's call to the device's read: nvcc compiles the reads, a host loop
// that follows the programming guide's formulas says what they give. Coordinates are multiples of 1/16, so
// that weights of eight bits are exact.
#include <cmath>
#include <vector>

#include "checks.h"

namespace {

__global__ void sample_2d(cudaTextureObject_t t, const float2* at, float* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = tex2D<float>(t, at[i].x, at[i].y);
}
__global__ void sample_pixels(cudaTextureObject_t t, float4* out, int width) {
  out[threadIdx.y * width + threadIdx.x] = tex2D<float4>(t, threadIdx.x + 0.5f, threadIdx.y + 0.5f);
}
__global__ void fetch_linear(cudaTextureObject_t t, int2* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = tex1Dfetch<int2>(t, i);
}
__global__ void sample_volume(cudaTextureObject_t t, float x, float y, float z, float* out) {
  *out = tex3D<float>(t, x, y, z);
}
__global__ void sample_layer(cudaTextureObject_t t, float x, float y, int layer, float* out) {
  *out = tex2DLayered<float>(t, x, y, layer);
}
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

std::vector<float> picture() {
  std::vector<float> v(kWidth * kHeight);
  for (int i = 0; i < kWidth * kHeight; ++i) v[i] = float(i * 37 % 101) - 50;
  return v;
}

// The element that a coordinate of an image of n elements leads to; -1: the border's colour.
int addressed(int i, int n, cudaTextureAddressMode mode) {
  switch (mode) {
    case cudaAddressModeWrap:
      return (i % n + n) % n;
    case cudaAddressModeMirror:
      i = (i % (2 * n) + 2 * n) % (2 * n);
      return i < n ? i : 2 * n - 1 - i;
    case cudaAddressModeBorder:
      return i < 0 || i >= n ? -1 : i;
    default:
      return i < 0 ? 0 : i >= n ? n - 1 : i;
  }
}
float expected(const std::vector<float>& image, const cudaTextureDesc& d, float x, float y) {
  const auto at = [&](int column, int row) {
    column = addressed(column, kWidth, d.addressMode[0]);
    row = addressed(row, kHeight, d.addressMode[1]);
    return column < 0 || row < 0 ? d.borderColor[0] : image[row * kWidth + column];
  };
  if (d.normalizedCoords) x *= kWidth, y *= kHeight;
  if (d.filterMode == cudaFilterModePoint) return at(int(std::floor(x)), int(std::floor(y)));
  const float xb = x - 0.5f, yb = y - 0.5f;
  const int i = int(std::floor(xb)), j = int(std::floor(yb));
  const float a = xb - i, b = yb - j;
  return (1 - a) * (1 - b) * at(i, j) + a * (1 - b) * at(i + 1, j) + (1 - a) * b * at(i, j + 1) +
         a * b * at(i + 1, j + 1);
}

// Every filter and address mode on one resource.
void sweep(const cudaResourceDesc& resource, const std::vector<float>& image) {
  std::vector<float2> at;
  for (int i = 0; i < 400; ++i)  // whole sixteenths, from well before the image to well behind it
    at.push_back(float2{float(i * 53 % 640 - 208) / 16, float(i * 71 % 368 - 128) / 16});
  float2* points = nullptr;
  float* out = nullptr;
  OK(cudaMalloc(&points, at.size() * sizeof(float2)));
  OK(cudaMalloc(&out, at.size() * sizeof(float)));
  for (int normalized = 0; normalized < 2; ++normalized)
    for (cudaTextureFilterMode filter : {cudaFilterModePoint, cudaFilterModeLinear})
      for (cudaTextureAddressMode mode :
           {cudaAddressModeWrap, cudaAddressModeMirror, cudaAddressModeClamp, cudaAddressModeBorder}) {
        if (!normalized && (mode == cudaAddressModeWrap || mode == cudaAddressModeMirror)) continue;
        cudaTextureDesc d = {};
        d.addressMode[0] = d.addressMode[1] = mode;
        d.filterMode = filter;
        d.normalizedCoords = normalized;
        d.borderColor[0] = mode == cudaAddressModeBorder ? 7.5f : 0;
        cudaTextureObject_t texture = 0;
        OK(cudaCreateTextureObject(&texture, &resource, &d, nullptr));
        std::vector<float2> given = at;
        if (normalized)
          for (float2& p : given) p.x /= kWidth, p.y /= kHeight;
        OK(cudaMemcpy(points, given.data(), given.size() * sizeof(float2), cudaMemcpyHostToDevice));
        sample_2d<<<4, 128>>>(texture, points, out, int(at.size()));
        std::vector<float> got(at.size());
        OK(cudaMemcpy(got.data(), out, got.size() * sizeof(float), cudaMemcpyDeviceToHost));
        int wrong = 0;
        for (size_t i = 0; i < at.size(); ++i) {
          // Normalised coordinates are rounded, so a point on the edge between two elements may be in either.
          const bool edge = normalized && filter == cudaFilterModePoint &&
                            (at[i].x == std::floor(at[i].x) || at[i].y == std::floor(at[i].y));
          cudaTextureDesc plain = d;
          plain.normalizedCoords = 0;
          const float want = expected(image, plain, at[i].x, at[i].y);
          const float most = normalized && filter == cudaFilterModeLinear ? 1.0f : 1e-4f;
          if (!edge && std::fabs(got[i] - want) > most) ++wrong;
        }
        EXPECT_EQ(wrong, 0);
        OK(cudaDestroyTextureObject(texture));
      }
  OK(cudaFree(points));
  OK(cudaFree(out));
}

void arrays() {
  const std::vector<float> image = picture();
  const cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
  cudaArray_t array = nullptr;
  OK(cudaMallocArray(&array, &format, kWidth, kHeight));
  OK(cudaMemcpy2DToArray(array, 0, 0, image.data(), kWidth * 4, kWidth * 4, kHeight, cudaMemcpyHostToDevice));
  cudaResourceDesc resource = {};
  resource.resType = cudaResourceTypeArray;
  resource.res.array.array = array;
  sweep(resource, image);
  OK(cudaFreeArray(array));
}

void pitched_memory() {
  const std::vector<float> image = picture();
  float* memory = nullptr;
  size_t pitch = 0;
  OK(cudaMallocPitch(&memory, &pitch, kWidth * 4, kHeight));
  OK(cudaMemcpy2D(memory, pitch, image.data(), kWidth * 4, kWidth * 4, kHeight, cudaMemcpyHostToDevice));
  cudaResourceDesc resource = {};
  resource.resType = cudaResourceTypePitch2D;
  resource.res.pitch2D.devPtr = memory;
  resource.res.pitch2D.desc = cudaCreateChannelDesc<float>();
  resource.res.pitch2D.width = kWidth;
  resource.res.pitch2D.height = kHeight;
  resource.res.pitch2D.pitchInBytes = pitch;
  sweep(resource, image);
  OK(cudaFree(memory));
}

void linear_memory() {
  constexpr int n = 1000;
  std::vector<int2> values(n);
  for (int i = 0; i < n; ++i) values[i] = int2{i * 3 - 50, -i};
  int2 *memory = nullptr, *out = nullptr;
  OK(cudaMalloc(&memory, n * sizeof(int2)));
  OK(cudaMalloc(&out, n * sizeof(int2)));
  OK(cudaMemcpy(memory, values.data(), n * sizeof(int2), cudaMemcpyHostToDevice));
  cudaResourceDesc resource = {};
  resource.resType = cudaResourceTypeLinear;
  resource.res.linear.devPtr = memory;
  resource.res.linear.desc = cudaCreateChannelDesc<int2>();
  resource.res.linear.sizeInBytes = n * sizeof(int2);
  cudaTextureDesc d = {};
  d.readMode = cudaReadModeElementType;
  cudaTextureObject_t texture = 0;
  OK(cudaCreateTextureObject(&texture, &resource, &d, nullptr));
  fetch_linear<<<8, 128>>>(texture, out, n);
  std::vector<int2> got(n);
  OK(cudaMemcpy(got.data(), out, n * sizeof(int2), cudaMemcpyDeviceToHost));
  int wrong = 0;
  for (int i = 0; i < n; ++i) wrong += got[i].x != values[i].x || got[i].y != values[i].y;
  EXPECT_EQ(wrong, 0);
  OK(cudaDestroyTextureObject(texture));
  OK(cudaFree(memory));
  OK(cudaFree(out));
}

// Bytes come back as 0 to 1.
void bytes_as_floats() {
  std::vector<uchar4> image(kWidth * kHeight);
  for (int i = 0; i < kWidth * kHeight; ++i)
    image[i] = uchar4{(unsigned char)i, (unsigned char)(2 * i), (unsigned char)(255 - i), 255};
  const cudaChannelFormatDesc format = cudaCreateChannelDesc<uchar4>();
  cudaArray_t array = nullptr;
  OK(cudaMallocArray(&array, &format, kWidth, kHeight));
  OK(cudaMemcpy2DToArray(array, 0, 0, image.data(), kWidth * 4, kWidth * 4, kHeight, cudaMemcpyHostToDevice));
  cudaResourceDesc resource = {};
  resource.resType = cudaResourceTypeArray;
  resource.res.array.array = array;
  cudaTextureDesc d = {};
  d.readMode = cudaReadModeNormalizedFloat;
  cudaTextureObject_t texture = 0;
  float4* out = nullptr;
  OK(cudaMalloc(&out, image.size() * sizeof(float4)));
  OK(cudaCreateTextureObject(&texture, &resource, &d, nullptr));
  sample_pixels<<<1, dim3(kWidth, kHeight)>>>(texture, out, kWidth);
  std::vector<float4> got(image.size());
  OK(cudaMemcpy(got.data(), out, got.size() * sizeof(float4), cudaMemcpyDeviceToHost));
  int wrong = 0;
  for (size_t i = 0; i < image.size(); ++i)
    wrong += got[i].x != image[i].x / 255.0f || got[i].y != image[i].y / 255.0f ||
             got[i].z != image[i].z / 255.0f || got[i].w != 1.0f;
  EXPECT_EQ(wrong, 0);
  OK(cudaDestroyTextureObject(texture));
  OK(cudaFreeArray(array));
  OK(cudaFree(out));
}

void volumes_and_layers() {
  const cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
  const cudaExtent extent = make_cudaExtent(4, 3, 2);
  std::vector<float> values(24);
  for (int i = 0; i < 24; ++i) values[i] = float(i * i);
  float* out = nullptr;
  OK(cudaMalloc(&out, 4));
  for (unsigned flags : {0u, unsigned(cudaArrayLayered)}) {
    cudaArray_t array = nullptr;
    OK(cudaMalloc3DArray(&array, &format, extent, flags));
    cudaMemcpy3DParms copy = {};
    copy.srcPtr = make_cudaPitchedPtr(values.data(), 16, 4, 3);
    copy.dstArray = array;
    copy.extent = extent;
    copy.kind = cudaMemcpyHostToDevice;
    OK(cudaMemcpy3D(&copy));
    cudaResourceDesc resource = {};
    resource.resType = cudaResourceTypeArray;
    resource.res.array.array = array;
    cudaTextureDesc d = {};
    d.filterMode = cudaFilterModeLinear;
    d.addressMode[0] = d.addressMode[1] = d.addressMode[2] = cudaAddressModeClamp;
    cudaTextureObject_t texture = 0;
    OK(cudaCreateTextureObject(&texture, &resource, &d, nullptr));
    float got = -1;
    if (flags) {
      sample_layer<<<1, 1>>>(texture, 2.0f, 1.5f, 1, out);  // between (1, 1) and (2, 1) of layer 1
    } else {
      sample_volume<<<1, 1>>>(texture, 2.0f, 1.5f, 1.0f, out);  // and between the slices
    }
    OK(cudaMemcpy(&got, out, 4, cudaMemcpyDeviceToHost));
    const float near = (values[5] + values[6]) / 2, far = (values[17] + values[18]) / 2;
    EXPECT_EQ(got, flags ? far : (near + far) / 2);
    OK(cudaDestroyTextureObject(texture));
    OK(cudaFreeArray(array));
  }
  OK(cudaFree(out));
}

// A kernel writes through a surface; the next reads it through that and through a texture.
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
  sweep(resource, image);
  OK(cudaDestroySurfaceObject(surface));
  OK(cudaFreeArray(array));
  OK(cudaFree(out));
}

}  // namespace

int main() {
  arrays();
  pitched_memory();
  linear_memory();
  bytes_as_floats();
  volumes_and_layers();
  surfaces();
  OK(cudaDeviceSynchronize());
  std::printf("%d failures\n", checks::g_failures);
  return checks::g_failures == 0 ? 0 : 1;
}
