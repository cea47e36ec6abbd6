// Compiled by nvcc for images_test.cc: a surface is painted with what a texture gives, moved by a quarter of
// its width.
extern "C" __global__ void repaint(cudaTextureObject_t from, cudaSurfaceObject_t to, int width, int height) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x >= width || y >= height) return;
  const float value = tex2D<float>(from, (x + 0.5f + width / 4) / width, (y + 0.5f) / height);
  surf2Dwrite(value, to, x * int(sizeof value), y);
}
