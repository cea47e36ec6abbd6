// The decoder's own kernels: what cuBLAS has not. Row-major matrices in single precision; no atomics, sums in a fixed order, so
// results do not depend on how a launch is cut or what runs beside it.
#pragma once

#include "../device.cuh"

namespace samples::transformer {

constexpr int kBlock = 128;  // threads
constexpr int kWarps = kBlock / 32;
constexpr float kNormEpsilon = 1e-5f;

inline int blocks_for(int count) {  // one thread each
  return (count + kBlock - 1) / kBlock;
}
inline int blocks_for_rows(int rows) {  // one warp each
  return (rows + kWarps - 1) / kWarps;
}

__device__ inline int warp_row() {
  return (blockIdx.x * kBlock + threadIdx.x) / 32;
}

// x[token] = vector of the token + vector of its position.
__global__ void __launch_bounds__(kBlock)
    embed(const int* __restrict__ token, const float* __restrict__ vectors,
          const float* __restrict__ positions, float* x, int length, int width, int count) {
  const int i = blockIdx.x * kBlock + threadIdx.x;
  if (i >= count) return;
  const int at = i / width, column = i % width;
  x[i] = vectors[token[at] * width + column] + positions[at % length * width + column];
}

// Gradient of `vectors`: every element adds up the tokens that are its own, in their order.
__global__ void __launch_bounds__(kBlock)
    token_gradient(const int* __restrict__ token, const float* __restrict__ dx, float* gradient, int tokens,
                   int width, int count) {
  const int i = blockIdx.x * kBlock + threadIdx.x;
  if (i >= count) return;
  const int self = i / width, column = i % width;
  float sum = 0;
  for (int at = 0; at < tokens; ++at)
    if (token[at] == self) sum += dx[at * width + column];
  gradient[i] = sum;
}

__global__ void __launch_bounds__(kBlock)
    position_gradient(const float* __restrict__ dx, float* gradient, int batch, int count) {
  const int i = blockIdx.x * kBlock + threadIdx.x;
  if (i >= count) return;
  float sum = 0;
  for (int b = 0; b < batch; ++b) sum += dx[b * count + i];
  gradient[i] = sum;
}

// y = (x - mean) / deviation * scale + shift for each row; both moments are kept for the way back.
__global__ void __launch_bounds__(kBlock)
    norm(const float* __restrict__ x, const float* __restrict__ scale, const float* __restrict__ shift,
         float* y, float2* moments, int rows, int width) {
  const int row = warp_row(), lane = threadIdx.x % 32;
  if (row >= rows) return;
  const float* from = x + size_t(row) * width;
  float sum = 0, squares = 0;
  for (int c = lane; c < width; c += 32) sum += from[c];
  const float mean = warp_sum(sum) / width;
  for (int c = lane; c < width; c += 32) squares += (from[c] - mean) * (from[c] - mean);
  const float inverse = rsqrtf(warp_sum(squares) / width + kNormEpsilon);
  for (int c = lane; c < width; c += 32)
    y[size_t(row) * width + c] = (from[c] - mean) * inverse * scale[c] + shift[c];
  if (lane == 0) moments[row] = {mean, inverse};
}

// dx of norm, added to what is in `dx` (the way around the layer) or, first, put there.
__global__ void __launch_bounds__(kBlock)
    norm_backward(const float* __restrict__ dy, const float* __restrict__ x,
                  const float2* __restrict__ moments, const float* __restrict__ scale, float* dx, bool first,
                  int rows, int width) {
  const int row = warp_row(), lane = threadIdx.x % 32;
  if (row >= rows) return;
  const size_t begin = size_t(row) * width;
  const float2 moment = moments[row];
  float sum = 0, along = 0;
  for (int c = lane; c < width; c += 32) {
    const float d = dy[begin + c] * scale[c];
    sum += d;
    along += d * (x[begin + c] - moment.x) * moment.y;
  }
  sum = warp_sum(sum) / width, along = warp_sum(along) / width;
  for (int c = lane; c < width; c += 32) {
    const float centred = (x[begin + c] - moment.x) * moment.y;
    const float d = moment.y * (dy[begin + c] * scale[c] - sum - centred * along);
    dx[begin + c] = first ? d : dx[begin + c] + d;
  }
}

// Blocks of 32 columns by kWarps rows at a time: sum over rows of value(row, column).
template <class Value>
__device__ void sum_of_column(float* out, int rows, int columns, const Value& value) {
  __shared__ float partial[kWarps][32];
  const int column = blockIdx.x * 32 + threadIdx.x % 32, first = threadIdx.x / 32;
  float sum = 0;
  if (column < columns)
    for (int row = first; row < rows; row += kWarps) sum += value(row, column);
  partial[first][threadIdx.x % 32] = sum;
  __syncthreads();
  if (first != 0 || column >= columns) return;
  for (int w = 1; w < kWarps; ++w) sum += partial[w][threadIdx.x];
  out[column] = sum;
}
inline int blocks_for_columns(int columns) {
  return (columns + 31) / 32;
}

// Gradient of a bias.
__global__ void __launch_bounds__(kBlock)
    column_sums(const float* __restrict__ x, float* sums, int rows, int columns) {
  sum_of_column(sums, rows, columns, [&](int row, int column) { return x[size_t(row) * columns + column]; });
}

__global__ void __launch_bounds__(kBlock)
    norm_scale_gradient(const float* __restrict__ dy, const float* __restrict__ x,
                        const float2* __restrict__ moments, float* gradient, int rows, int width) {
  sum_of_column(gradient, rows, width, [&](int row, int column) {
    const float2 moment = moments[row];
    const size_t i = size_t(row) * width + column;
    return dy[i] * (x[i] - moment.x) * moment.y;
  });
}

// From [token][part][head][j] to [part][sequence][head][position][j], where one head's matrices lie together; and back.
struct HeadShape {
  int length, heads, head_width, parts, batch;
};
__device__ inline int in_heads(int i, const HeadShape& s) {
  const int j = i % s.head_width, head = i / s.head_width % s.heads;
  const int part = i / (s.head_width * s.heads) % s.parts, token = i / (s.head_width * s.heads * s.parts);
  const int sequence = token / s.length, position = token % s.length;
  return (((part * s.batch + sequence) * s.heads + head) * s.length + position) * s.head_width + j;
}
__global__ void __launch_bounds__(kBlock)
    split_heads(const float* __restrict__ x, float* heads, HeadShape shape, int count) {
  const int i = blockIdx.x * kBlock + threadIdx.x;
  if (i < count) heads[in_heads(i, shape)] = x[i];
}
__global__ void __launch_bounds__(kBlock)
    merge_heads(const float* __restrict__ heads, float* x, HeadShape shape, int count) {
  const int i = blockIdx.x * kBlock + threadIdx.x;
  if (i < count) x[i] = heads[in_heads(i, shape)];
}

// Probabilities of each row, over its first `row % length + 1` columns (a token sees those before it) or, without `causal`, all.
__global__ void __launch_bounds__(kBlock) softmax(float* x, int rows, int columns, bool causal) {
  const int row = warp_row(), lane = threadIdx.x % 32;
  if (row >= rows) return;
  float* p = x + size_t(row) * columns;
  const int seen = causal ? row % columns + 1 : columns;
  float top = -INFINITY, sum = 0;
  for (int c = lane; c < seen; c += 32) top = fmaxf(top, p[c]);
  top = warp_max(top);
  for (int c = lane; c < seen; c += 32) sum += expf(p[c] - top);
  const float scale = 1.0f / warp_sum(sum);
  for (int c = lane; c < columns; c += 32) p[c] = c < seen ? expf(p[c] - top) * scale : 0;
}

// Turns the gradient of probabilities into that of the scores, which were multiplied by `factor`.
__global__ void __launch_bounds__(kBlock)
    softmax_backward(const float* __restrict__ probability, float* gradient, float factor, int rows,
                     int columns) {
  const int row = warp_row(), lane = threadIdx.x % 32;
  if (row >= rows) return;
  const float* p = probability + size_t(row) * columns;
  float* d = gradient + size_t(row) * columns;
  float sum = 0;
  for (int c = lane; c < columns; c += 32) sum += p[c] * d[c];
  sum = warp_sum(sum);
  for (int c = lane; c < columns; c += 32) d[c] = factor * p[c] * (d[c] - sum);
}

__global__ void __launch_bounds__(kBlock) gelu_of(const float* __restrict__ x, float* y, int count) {
  const int i = blockIdx.x * kBlock + threadIdx.x;
  if (i < count) y[i] = gelu(x[i]);
}
__global__ void __launch_bounds__(kBlock)
    gelu_backward(const float* __restrict__ x, float* gradient, int count) {
  const int i = blockIdx.x * kBlock + threadIdx.x;
  if (i >= count) return;
  const float v = x[i], t = tanhf(0.7978845608f * (v + 0.044715f * v * v * v));
  gradient[i] *= 0.5f * (1 + t) + 0.5f * v * (1 - t * t) * 0.7978845608f * (1 + 3 * 0.044715f * v * v);
}

// Loss of each row, and in place of the logits their gradient, of the mean over rows.
__global__ void __launch_bounds__(kBlock)
    cross_entropy(float* logits, const int* __restrict__ target, float* loss, int rows, int columns) {
  const int row = warp_row(), lane = threadIdx.x % 32;
  if (row >= rows) return;
  float* x = logits + size_t(row) * columns;
  const int wanted = target[row];
  float top = -INFINITY, sum = 0;
  for (int c = lane; c < columns; c += 32) top = fmaxf(top, x[c]);
  top = warp_max(top);
  for (int c = lane; c < columns; c += 32) sum += expf(x[c] - top);
  sum = warp_sum(sum);
  if (lane == 0) loss[row] = top + logf(sum) - x[wanted];
  __syncwarp();
  const float scale = 1.0f / sum, share = 1.0f / rows;
  for (int c = lane; c < columns; c += 32)
    x[c] = (expf(x[c] - top) * scale - (c == wanted ? 1.0f : 0.0f)) * share;
}

// One block.
__global__ void __launch_bounds__(kBlock) mean(const float* __restrict__ x, float* out, int count) {
  __shared__ float warps[kWarps];
  float sum = 0;
  for (int i = threadIdx.x; i < count; i += kBlock) sum += x[i];
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int w = 1; w < kWarps; ++w) sum += warps[w];
  out[0] = sum / count;
}

struct Adam {
  float rate, first_decay, second_decay, epsilon;
  float first_correction, second_correction;  // 1 / (1 - decay^step)
};
__global__ void __launch_bounds__(kBlock) adam(float* parameter, float* first, float* second,
                                               const float* __restrict__ gradient, Adam a, int count) {
  const int i = blockIdx.x * kBlock + threadIdx.x;
  if (i >= count) return;
  const float g = gradient[i];
  const float m = first[i] = a.first_decay * first[i] + (1 - a.first_decay) * g;
  const float v = second[i] = a.second_decay * second[i] + (1 - a.second_decay) * g * g;
  parameter[i] -= a.rate * (m * a.first_correction) / (sqrtf(v * a.second_correction) + a.epsilon);
}

}  // namespace samples::transformer
