// CUB's and Thrust's device-wide algorithms on int, float and double, to see which of their kernels may be
// cut. Compiled, never run: scripts/slice_share.sh --library.
#include <thrust/binary_search.h>
#include <thrust/copy.h>
#include <thrust/device_vector.h>
#include <thrust/extrema.h>
#include <thrust/fill.h>
#include <thrust/for_each.h>
#include <thrust/functional.h>
#include <thrust/merge.h>
#include <thrust/partition.h>
#include <thrust/reduce.h>
#include <thrust/remove.h>
#include <thrust/scan.h>
#include <thrust/set_operations.h>
#include <thrust/sort.h>
#include <thrust/transform.h>
#include <thrust/transform_reduce.h>
#include <thrust/unique.h>

#include <cub/cub.cuh>

template <class T>
struct Positive {
  __host__ __device__ bool operator()(T x) const { return x > T(0); }
};

template <class T>
struct Increase {
  __host__ __device__ void operator()(T& x) const { x += T(1); }
};

template <class T>
void cub_algorithms(T* in, T* out, int* count, int* offsets, int n) {
  void* w = nullptr;
  size_t bytes = 0;
  cub::DeviceReduce::Sum(w, bytes, in, out, n);
  cub::DeviceReduce::Max(w, bytes, in, out, n);
  cub::DeviceReduce::ReduceByKey(w, bytes, offsets, offsets, in, out, count, cuda::std::plus<>{}, n);
  cub::DeviceScan::ExclusiveSum(w, bytes, in, out, n);
  cub::DeviceScan::InclusiveSum(w, bytes, in, out, n);
  cub::DeviceScan::InclusiveScan(w, bytes, in, out, cuda::maximum<>{}, n);
  cub::DeviceScan::ExclusiveSumByKey(w, bytes, offsets, in, out, n);
  cub::DeviceSelect::If(w, bytes, in, out, count, n, Positive<T>{});
  cub::DeviceSelect::Flagged(w, bytes, in, offsets, out, count, n);
  cub::DeviceSelect::Unique(w, bytes, in, out, count, n);
  cub::DevicePartition::If(w, bytes, in, out, count, n, Positive<T>{});
  cub::DevicePartition::Flagged(w, bytes, in, offsets, out, count, n);
  cub::DeviceRadixSort::SortKeys(w, bytes, in, out, n);
  cub::DeviceRadixSort::SortPairsDescending(w, bytes, in, out, offsets, offsets, n);
  cub::DeviceMergeSort::SortKeys(w, bytes, in, n, cuda::std::less<>{});
  cub::DeviceSegmentedReduce::Sum(w, bytes, in, out, 8, offsets, offsets + 1);
  cub::DeviceSegmentedRadixSort::SortKeys(w, bytes, in, out, n, 8, offsets, offsets + 1);
  cub::DeviceSegmentedSort::SortKeys(w, bytes, in, out, n, 8, offsets, offsets + 1);
  cub::DeviceRunLengthEncode::Encode(w, bytes, in, out, offsets, count, n);
  cub::DeviceRunLengthEncode::NonTrivialRuns(w, bytes, in, offsets, offsets, count, n);
  cub::DeviceHistogram::HistogramEven(w, bytes, in, count, 65, T(0), T(64), n);
  cub::DeviceAdjacentDifference::SubtractLeftCopy(w, bytes, in, out, n);
  cub::DeviceMerge::MergeKeys(w, bytes, in, n, in, n, out);
}

template <class T>
void thrust_algorithms(thrust::device_vector<T>& a, thrust::device_vector<T>& b,
                       thrust::device_vector<T>& c) {
  using namespace thrust;
  fill(a.begin(), a.end(), T(1));
  thrust::transform(a.begin(), a.end(), b.begin(), thrust::negate<T>());
  for_each(a.begin(), a.end(), Increase<T>{});
  reduce(a.begin(), a.end(), T(0));
  transform_reduce(a.begin(), a.end(), thrust::negate<T>(), T(0), thrust::plus<T>());
  max_element(a.begin(), a.end());
  inclusive_scan(a.begin(), a.end(), b.begin());
  inclusive_scan_by_key(a.begin(), a.end(), b.begin(), c.begin());
  sort(a.begin(), a.end());
  stable_sort(a.begin(), a.end(), thrust::greater<T>());
  copy_if(a.begin(), a.end(), b.begin(), Positive<T>{});
  remove_if(a.begin(), a.end(), Positive<T>{});
  partition(a.begin(), a.end(), Positive<T>{});
  unique(a.begin(), a.end());
  reduce_by_key(a.begin(), a.end(), b.begin(), c.begin(), c.begin());
  lower_bound(a.begin(), a.end(), b.begin(), b.end(), c.begin());
  merge(a.begin(), a.end(), b.begin(), b.end(), c.begin());
  set_union(a.begin(), a.end(), b.begin(), b.end(), c.begin());
  set_intersection(a.begin(), a.end(), b.begin(), b.end(), c.begin());
  set_difference(a.begin(), a.end(), b.begin(), b.end(), c.begin());
}

template <class T>
void all() {
  thrust::device_vector<T> a(1), b(1), c(1);
  thrust_algorithms(a, b, c);
  cub_algorithms<T>(nullptr, nullptr, nullptr, nullptr, 1);
}
void corpus() {
  all<int>();
  all<float>();
  all<double>();
}
