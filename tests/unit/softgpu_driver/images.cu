// Compiled by nvcc for images_test.cc: a surface is painted with what another one has, moved by a quarter of
// its width, and a texture is read.
extern "C" __global__ void repaint(cudaSurfaceObject_t from, cudaSurfaceObject_t to, int width, int height) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x >= width || y >= height) return;
  const float value = surf2Dread<float>(from, (x + width / 4) % width * int(sizeof value), y);
  surf2Dwrite(value, to, x * int(sizeof value), y);
}

extern "C" __global__ void sample(cudaTextureObject_t from, float* to) {
  *to = tex2D<float>(from, 0.5f, 0.5f);
}
