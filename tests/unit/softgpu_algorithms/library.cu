// Algorithms of the toolkit's CUB and Thrust, against plain loops on the host. Sizes are no multiples of
// anything.
#include <thrust/device_vector.h>
#include <thrust/scan.h>

#include <algorithm>
#include <cub/device/device_histogram.cuh>
#include <cub/device/device_partition.cuh>
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_reduce.cuh>
#include <cub/device/device_run_length_encode.cuh>
#include <cub/device/device_scan.cuh>
#include <cub/device/device_select.cuh>
#include <numeric>

#include "tests/unit/softgpu_algorithms/checks.h"

namespace {

// Calls a CUB algorithm twice: for the size of its workspace, then for real.
template <class F>
void twice(F f) {
  size_t bytes = 0;
  CHECK_CUDA(f(nullptr, bytes));
  Device<char> workspace(bytes + 1);
  CHECK_CUDA(f(workspace.data(), bytes));
  CHECK_CUDA(cudaDeviceSynchronize());
}

std::vector<unsigned> numbers(size_t n, unsigned limit) {
  std::vector<unsigned> v(n * g_times);
  unsigned x = 12345;
  for (unsigned& y : v) y = (x = x * 1664525 + 1013904223) >> 8, y = limit ? y % limit : y;
  return v;
}

void reduce() {
  const std::vector<unsigned> in = numbers(70001, 0);
  Device<unsigned> d(in), out(1);
  twice([&](void* w, size_t& bytes) {
    return cub::DeviceReduce::Sum(w, bytes, d.data(), out.data(), int(in.size()));
  });
  expect_equal(out.get(), {std::accumulate(in.begin(), in.end(), 0u)}, "sum");
}

void scan() {
  const std::vector<unsigned> in = numbers(50003, 100);
  Device<unsigned> d(in), out(in.size());
  twice([&](void* w, size_t& bytes) {
    return cub::DeviceScan::ExclusiveSum(w, bytes, d.data(), out.data(), int(in.size()));
  });
  std::vector<unsigned> want(in.size());
  std::exclusive_scan(in.begin(), in.end(), want.begin(), 0u);
  expect_equal(out.get(), want, "exclusive sum");
}

void radix_sort() {
  const std::vector<unsigned> in = numbers(20011, 0);
  std::vector<unsigned> want = in;
  Device<unsigned> d(in), out(in.size());
  twice([&](void* w, size_t& bytes) {
    return cub::DeviceRadixSort::SortKeys(w, bytes, d.data(), out.data(), int(in.size()));
  });
  std::sort(want.begin(), want.end());
  expect_equal(out.get(), want, "sorted keys");
}

void histogram() {
  const std::vector<unsigned> in = numbers(30007, 64);
  Device<unsigned> d(in);
  Device<int> out(64);
  twice([&](void* w, size_t& bytes) {
    return cub::DeviceHistogram::HistogramEven(w, bytes, d.data(), out.data(), 65, 0u, 64u, int(in.size()));
  });
  std::vector<int> want(64);
  for (unsigned x : in) ++want[x];
  expect_equal(out.get(), want, "histogram");
}

struct IsOdd {
  __host__ __device__ bool operator()(unsigned x) const { return x & 1; }
};
void select() {
  const std::vector<unsigned> in = numbers(40009, 0);
  Device<unsigned> d(in), out(in.size());
  Device<int> count(1);
  twice([&](void* w, size_t& bytes) {
    return cub::DeviceSelect::If(w, bytes, d.data(), out.data(), count.data(), int(in.size()), IsOdd{});
  });
  std::vector<unsigned> want;
  std::copy_if(in.begin(), in.end(), std::back_inserter(want), IsOdd{});
  std::vector<unsigned> got = out.get();
  got.resize(size_t(count.get().at(0)));
  expect_equal(got, want, "selected");
}

// Selected ones first, the others behind them in reverse order.
void partition() {
  const std::vector<unsigned> in = numbers(30013, 0);
  Device<unsigned> d(in), out(in.size());
  Device<int> count(1);
  twice([&](void* w, size_t& bytes) {
    return cub::DevicePartition::If(w, bytes, d.data(), out.data(), count.data(), int(in.size()), IsOdd{});
  });
  std::vector<unsigned> want, others;
  for (unsigned x : in) (x & 1 ? want : others).push_back(x);
  want.insert(want.end(), others.rbegin(), others.rend());
  expect_equal(out.get(), want, "partitioned");
}

void run_length() {
  std::vector<unsigned> in = numbers(30011, 3);
  Device<unsigned> d(in), unique(in.size());
  Device<int> lengths(in.size()), count(1);
  twice([&](void* w, size_t& bytes) {
    return cub::DeviceRunLengthEncode::Encode(w, bytes, d.data(), unique.data(), lengths.data(), count.data(),
                                              int(in.size()));
  });
  std::vector<unsigned> want;
  std::vector<int> want_lengths;
  for (unsigned x : in) {
    if (want.empty() || want.back() != x) want.push_back(x), want_lengths.push_back(0);
    ++want_lengths.back();
  }
  std::vector<unsigned> got = unique.get();
  std::vector<int> got_lengths = lengths.get();
  got.resize(size_t(count.get().at(0)));
  got_lengths.resize(got.size());
  expect_equal(got, want, "runs");
  expect_equal(got_lengths, want_lengths, "lengths");
}

void thrust_scan() {
  const std::vector<unsigned> in = numbers(10007, 50);
  thrust::device_vector<unsigned> d(in.begin(), in.end());
  thrust::inclusive_scan(d.begin(), d.end(), d.begin());
  std::vector<unsigned> got(in.size()), want(in.size());
  CHECK_CUDA(
      cudaMemcpy(got.data(), thrust::raw_pointer_cast(d.data()), got.size() * 4, cudaMemcpyDeviceToHost));
  std::inclusive_scan(in.begin(), in.end(), want.begin());
  expect_equal(got, want, "thrust::inclusive_scan");
}

}  // namespace

std::vector<Algorithm> library_algorithms() {
  return {
      {"reduce", reduce}, {"scan", scan},           {"radix_sort", radix_sort}, {"histogram", histogram},
      {"select", select}, {"partition", partition}, {"run_length", run_length}, {"thrust_scan", thrust_scan}};
}
