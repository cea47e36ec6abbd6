// Small versions of what programs do on GPUs, against host results in double.
#include <mma.h>

#include <algorithm>
#include <complex>
#include <queue>

#include "tests/unit/softgpu_algorithms/checks.h"

namespace {

std::vector<float> floats(size_t n, unsigned seed) {
  std::vector<float> v(n);
  unsigned x = seed;
  for (float& y : v) y = float(int((x = x * 1664525 + 1013904223) >> 16) - 32768) / 32768;
  return v;
}
void done() {
  CHECK_CUDA(cudaGetLastError());
  CHECK_CUDA(cudaDeviceSynchronize());
}

// --- matrix products: tiles in shared memory; tensor cores

__global__ void gemm_tiles(const float* a, const float* b, float* c, int m, int n, int k) {
  __shared__ float as[16][17], bs[16][17];
  const int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * 16 + y, column = blockIdx.x * 16 + x;
  float sum = 0;
  for (int t = 0; t < k; t += 16) {
    as[y][x] = row < m && t + x < k ? a[row * k + t + x] : 0;
    bs[y][x] = t + y < k && column < n ? b[(t + y) * n + column] : 0;
    __syncthreads();
    for (int i = 0; i < 16; ++i) sum += as[y][i] * bs[i][x];
    __syncthreads();
  }
  if (row < m && column < n) c[row * n + column] = sum;
}

__global__ void gemm_tensor(const half* a, const half* b, float* c, int n, int k) {
  using namespace nvcuda::wmma;
  const int row = blockIdx.y * 16, column = blockIdx.x * 16;
  fragment<matrix_a, 16, 16, 16, half, row_major> fa;
  fragment<matrix_b, 16, 16, 16, half, row_major> fb;
  fragment<accumulator, 16, 16, 16, float> sum;
  fill_fragment(sum, 0.0f);
  for (int t = 0; t < k; t += 16) {
    load_matrix_sync(fa, a + row * k + t, k);
    load_matrix_sync(fb, b + t * n + column, n);
    mma_sync(sum, fa, fb, sum);
  }
  store_matrix_sync(c + row * n + column, sum, n, mem_row_major);
}

std::vector<float> product(const std::vector<float>& a, const std::vector<float>& b, int m, int n, int k) {
  std::vector<float> c(size_t(m) * n);
  for (int i = 0; i < m; ++i)
    for (int j = 0; j < n; ++j) {
      double sum = 0;
      for (int t = 0; t < k; ++t) sum += double(a[i * k + t]) * b[t * n + j];
      c[i * n + j] = float(sum);
    }
  return c;
}
void gemm() {
  const int m = 70, n = 51, k = 37;
  const std::vector<float> a = floats(m * k, 1), b = floats(k * n, 2);
  Device<float> da(a), db(b), dc(m * n);
  gemm_tiles<<<dim3((n + 15) / 16, (m + 15) / 16), dim3(16, 16)>>>(da.data(), db.data(), dc.data(), m, n, k);
  done();
  expect_near(dc.get(), product(a, b, m, n, k), 1e-6, "gemm");
}
void wmma() {
  const int m = 48, n = 32, k = 64;
  std::vector<float> a = floats(m * k, 3), b = floats(k * n, 4);
  std::vector<half> ha, hb;
  for (float& x : a) ha.push_back(__float2half(x)), x = __half2float(ha.back());
  for (float& x : b) hb.push_back(__float2half(x)), x = __half2float(hb.back());
  Device<half> da(ha), db(hb);
  Device<float> dc(m * n);
  gemm_tensor<<<dim3(n / 16, m / 16), 32>>>(da.data(), db.data(), dc.data(), n, k);
  done();
  expect_near(dc.get(), product(a, b, m, n, k), 1e-6, "wmma");
}

// --- five-point stencil, with a frame in shared memory

__global__ void stencil_step(const float* in, float* out, int width, int height) {
  __shared__ float s[10][34];
  const int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 8 + threadIdx.y;
  const auto at = [&](int i, int j) {
    return in[min(max(j, 0), height - 1) * width + min(max(i, 0), width - 1)];
  };
  s[threadIdx.y + 1][threadIdx.x + 1] = at(x, y);
  if (threadIdx.x == 0) s[threadIdx.y + 1][0] = at(x - 1, y);
  if (threadIdx.x == 31) s[threadIdx.y + 1][33] = at(x + 1, y);
  if (threadIdx.y == 0) s[0][threadIdx.x + 1] = at(x, y - 1);
  if (threadIdx.y == 7) s[9][threadIdx.x + 1] = at(x, y + 1);
  __syncthreads();
  if (x >= width || y >= height) return;
  const int i = threadIdx.x + 1, j = threadIdx.y + 1;
  out[y * width + x] = 0.5f * s[j][i] + 0.125f * (s[j][i - 1] + s[j][i + 1] + s[j - 1][i] + s[j + 1][i]);
}
void stencil() {
  const int width = 75, height = 43;
  std::vector<float> want = floats(width * height, 5);
  Device<float> a(want), b(want.size());
  float *from = a.data(), *to = b.data();
  for (int step = 0; step < 4; ++step) {
    stencil_step<<<dim3((width + 31) / 32, (height + 7) / 8), dim3(32, 8)>>>(from, to, width, height);
    std::swap(from, to);
    const std::vector<float> old = want;
    const auto at = [&](int i, int j) {
      return double(old[std::clamp(j, 0, height - 1) * width + std::clamp(i, 0, width - 1)]);
    };
    for (int y = 0; y < height; ++y)
      for (int x = 0; x < width; ++x)
        want[y * width + x] =
            float(0.5 * at(x, y) + 0.125 * (at(x - 1, y) + at(x + 1, y) + at(x, y - 1) + at(x, y + 1)));
  }
  done();
  expect_near(a.get(), want, 1e-6, "stencil");
}

// --- FFT of 512 points per block, in place in shared memory

__global__ void fft512(float2* data) {
  __shared__ float2 s[512];
  float2* own = data + blockIdx.x * 512;
  const int t = threadIdx.x;  // 256 butterflies
  for (int i = t; i < 512; i += 256) s[__brev(unsigned(i)) >> 23] = own[i];
  for (int half = 1; half < 512; half *= 2) {
    __syncthreads();
    const int k = t % half, i = t / half * 2 * half + k;
    float sine, cosine;
    sincospif(-float(k) / half, &sine, &cosine);
    const float2 u = s[i], v = s[i + half];
    const float2 w = {v.x * cosine - v.y * sine, v.x * sine + v.y * cosine};
    s[i] = {u.x + w.x, u.y + w.y};
    s[i + half] = {u.x - w.x, u.y - w.y};
  }
  __syncthreads();
  for (int i = t; i < 512; i += 256) own[i] = s[i];
}
void fft() {
  const size_t batch = 3;
  const std::vector<float> in = floats(batch * 1024, 6);
  Device<float> d(in);
  fft512<<<batch, 256>>>(reinterpret_cast<float2*>(d.data()));
  done();
  std::vector<float> want;
  for (size_t b = 0; b < batch; ++b)
    for (int k = 0; k < 512; ++k) {
      std::complex<double> sum = 0;
      for (int j = 0; j < 512; ++j)
        sum += std::complex<double>(in[b * 1024 + 2 * j], in[b * 1024 + 2 * j + 1]) *
               std::polar(1.0, -2 * M_PI * (j * k % 512) / 512);
      want.push_back(float(sum.real()));
      want.push_back(float(sum.imag()));
    }
  expect_near(d.get(), want, 1e-6, "fft");
}

// --- breadth-first search: one launch per level, the next frontier is collected by atomics

__global__ void bfs_level(const int* rows, const int* columns, int* depth, const int* frontier, int n,
                          int* next, int* n_next, int level) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const int v = frontier[i];
  for (int e = rows[v]; e < rows[v + 1]; ++e)
    if (atomicCAS(&depth[columns[e]], -1, level) == -1) next[atomicAdd(n_next, 1)] = columns[e];
}
void bfs() {
  const int n = 3000;
  std::vector<int> rows = {0}, columns;
  unsigned x = 9;
  for (int v = 0; v < n; ++v) {
    for (unsigned e = (x = x * 1664525 + 1013904223) >> 30; e > 0; --e)
      columns.push_back(int((x = x * 1664525 + 1013904223) >> 8) % n);
    columns.push_back((v * 7 + 1) % n);
    rows.push_back(int(columns.size()));
  }
  std::vector<int> want(n, -1), depth(n, -1);
  std::queue<int> queue({0});
  want[0] = depth[0] = 0;
  for (; !queue.empty(); queue.pop())
    for (int e = rows[queue.front()]; e < rows[queue.front() + 1]; ++e)
      if (want[columns[e]] < 0) want[columns[e]] = want[queue.front()] + 1, queue.push(columns[e]);
  Device<int> d_rows(rows), d_columns(columns), d_depth(depth), a(n), b(n), count(1);
  int *from = a.data(), *to = b.data();
  for (int level = 1, size = 1; size > 0; ++level) {
    CHECK_CUDA(cudaMemset(count.data(), 0, 4));
    bfs_level<<<(size + 127) / 128, 128>>>(d_rows.data(), d_columns.data(), d_depth.data(), from, size, to,
                                           count.data(), level);
    done();
    size = count.get()[0];
    std::swap(from, to);
  }
  expect_equal(d_depth.get(), want, "depth");
}

// --- rows: softmax, layer norm, attention

__device__ float warp_sum(float x) {
  for (int d = 16; d; d /= 2) x += __shfl_xor_sync(~0u, x, d);
  return x;
}
__device__ float warp_max(float x) {
  for (int d = 16; d; d /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, d));
  return x;
}
__global__ void softmax_rows(const float* in, float* out, int columns) {
  const float* row = in + blockIdx.x * columns;
  float most = -INFINITY, sum = 0;
  for (int i = threadIdx.x; i < columns; i += 32) most = fmaxf(most, row[i]);
  most = warp_max(most);
  for (int i = threadIdx.x; i < columns; i += 32) sum += expf(row[i] - most);
  sum = warp_sum(sum);
  for (int i = threadIdx.x; i < columns; i += 32) out[blockIdx.x * columns + i] = expf(row[i] - most) / sum;
}
void softmax() {
  const int rows = 21, columns = 203;
  std::vector<float> in = floats(rows * columns, 7), want(in.size());
  for (float& x : in) x *= 20;
  Device<float> d(in), out(in.size());
  softmax_rows<<<rows, 32>>>(d.data(), out.data(), columns);
  done();
  for (int r = 0; r < rows; ++r) {
    const float* row = &in[r * columns];
    const double most = *std::max_element(row, row + columns);
    double sum = 0;
    for (int i = 0; i < columns; ++i) sum += std::exp(row[i] - most);
    for (int i = 0; i < columns; ++i) want[r * columns + i] = float(std::exp(row[i] - most) / sum);
  }
  expect_near(out.get(), want, 2e-6, "softmax");
}

__global__ void layer_norm_rows(const float* in, const float* gain, const float* bias, float* out,
                                int columns) {
  __shared__ float parts[2][4];
  const float* row = in + blockIdx.x * columns;
  float sum = 0, squares = 0;
  for (int i = threadIdx.x; i < columns; i += 128) sum += row[i], squares += row[i] * row[i];
  sum = warp_sum(sum), squares = warp_sum(squares);
  if (threadIdx.x % 32 == 0) parts[0][threadIdx.x / 32] = sum, parts[1][threadIdx.x / 32] = squares;
  __syncthreads();
  sum = parts[0][0] + parts[0][1] + parts[0][2] + parts[0][3];
  squares = parts[1][0] + parts[1][1] + parts[1][2] + parts[1][3];
  const float mean = sum / columns, scale = rsqrtf(squares / columns - mean * mean + 1e-5f);
  for (int i = threadIdx.x; i < columns; i += 128)
    out[blockIdx.x * columns + i] = (row[i] - mean) * scale * gain[i] + bias[i];
}
void layer_norm() {
  const int rows = 9, columns = 515;
  const std::vector<float> in = floats(rows * columns, 8), gain = floats(columns, 9),
                           bias = floats(columns, 10);
  std::vector<float> want(in.size());
  Device<float> d(in), dg(gain), db(bias), out(in.size());
  layer_norm_rows<<<rows, 128>>>(d.data(), dg.data(), db.data(), out.data(), columns);
  done();
  for (int r = 0; r < rows; ++r) {
    double mean = 0, variance = 0;
    for (int i = 0; i < columns; ++i) mean += in[r * columns + i] / columns;
    for (int i = 0; i < columns; ++i) variance += std::pow(in[r * columns + i] - mean, 2) / columns;
    for (int i = 0; i < columns; ++i)
      want[r * columns + i] =
          float((in[r * columns + i] - mean) / std::sqrt(variance + 1e-5) * gain[i] + bias[i]);
  }
  expect_near(out.get(), want, 4e-6, "layer norm");
}

// One query per thread; keys and values pass through shared memory in tiles, the softmax is kept running.
template <int kHead>
__global__ void attention_rows(const float* q, const float* k, const float* v, float* out, int n,
                               bool causal) {
  __shared__ float ks[32][kHead], vs[32][kHead];
  const int row = blockIdx.x * 32 + threadIdx.x;
  float query[kHead], sum[kHead] = {}, most = -INFINITY, weight = 0;
  for (int i = 0; i < kHead; ++i) query[i] = row < n ? q[row * kHead + i] * rsqrtf(kHead) : 0;
  for (int t = 0; t < n; t += 32) {
    __syncthreads();
    for (int i = threadIdx.x; i < 32 * kHead; i += 32) {
      ks[i / kHead][i % kHead] = t + i / kHead < n ? k[t * kHead + i] : 0;
      vs[i / kHead][i % kHead] = t + i / kHead < n ? v[t * kHead + i] : 0;
    }
    __syncthreads();
    for (int j = 0; j < min(32, n - t); ++j) {
      if (causal && t + j > row) break;
      float score = 0;
      for (int i = 0; i < kHead; ++i) score += query[i] * ks[j][i];
      const float fresh = fmaxf(most, score), keep = __expf(most - fresh), own = __expf(score - fresh);
      for (int i = 0; i < kHead; ++i) sum[i] = sum[i] * keep + own * vs[j][i];
      weight = weight * keep + own;
      most = fresh;
    }
  }
  if (row < n)
    for (int i = 0; i < kHead; ++i) out[row * kHead + i] = sum[i] / weight;
}
void attention() {
  const int n = 83, head = 16;
  const std::vector<float> q = floats(n * head, 11), k = floats(n * head, 12), v = floats(n * head, 13);
  Device<float> dq(q), dk(k), dv(v), out(n * head);
  for (const bool causal : {false, true}) {
    attention_rows<16><<<(n + 31) / 32, 32>>>(dq.data(), dk.data(), dv.data(), out.data(), n, causal);
    done();
    std::vector<float> want(n * head);
    for (int r = 0; r < n; ++r) {
      std::vector<double> weights;
      double sum = 0;
      for (int j = 0; j < (causal ? r + 1 : n); ++j) {
        double score = 0;
        for (int i = 0; i < head; ++i) score += double(q[r * head + i]) * k[j * head + i] / 4;
        weights.push_back(std::exp(score));
        sum += weights.back();
      }
      for (int i = 0; i < head; ++i) {
        double x = 0;
        for (size_t j = 0; j < weights.size(); ++j) x += weights[j] * v[j * head + i] / sum;
        want[r * head + i] = float(x);
      }
    }
    expect_near(out.get(), want, 1e-5, causal ? "causal attention" : "attention");
  }
}

}  // namespace

std::vector<Algorithm> own_algorithms() {
  return {{"gemm", gemm}, {"wmma", wmma},       {"stencil", stencil},       {"fft", fft},
          {"bfs", bfs},   {"softmax", softmax}, {"layer_norm", layer_norm}, {"attention", attention}};
}
