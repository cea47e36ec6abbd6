// H16: how much a kernel suffers from another one beside it: (compute, memory) x (compute, memory), on multiprocessors
// that both use and on multiprocessors of its own (green contexts). Each kernel has half of the room: half of the
// thread slots of every multiprocessor, or every slot of half of them. Slowdown = time beside the other over time alone
// in the same place. `contention` and `contention_disjoint` are what the simulator's tables of these names say:
// slowdown = 1 + contention * the part of the GPU that the other one takes. `tessera simulate --contention` reads them.
#include <array>
#include <chrono>
#include <cmath>
#include <future>

#include "green.h"

namespace {

constexpr int kThreads = 256;
constexpr const char* kClassNames[] = {"compute", "memory"};

__global__ void compute(float* out, int64_t rounds) {
  float a = float(threadIdx.x), b = a + 1, c = a + 2, d = a + 3;
  for (int64_t i = 0; i < rounds; ++i) {
    a = a * 0.999f + 0.5f, b = b * 0.998f + 0.5f;
    c = c * 0.997f + 0.5f, d = d * 0.996f + 0.5f;
  }
  if (a + b + c + d == 1234.5f) out[0] = a;  // never; keeps the loop
}

// Reads and writes every element once per pass; larger than the caches.
__global__ void stream_memory(float* data, int64_t n, int64_t passes) {
  const int64_t step = int64_t(gridDim.x) * blockDim.x;
  for (int64_t pass = 0; pass < passes; ++pass)
    for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step)
      data[i] = data[i] * 0.5f + 1;
}

struct Work {    // one side
  int kind = 0;  // of kClassNames
  int blocks = 0;
  int64_t amount = 1;  // rounds or passes: length of one launch
  float* data = nullptr;
  int64_t elements = 0;
  void launch(cudaStream_t stream) const {
    if (kind == 0)
      compute<<<unsigned(blocks), kThreads, 0, stream>>>(data, amount);
    else
      stream_memory<<<unsigned(blocks), kThreads, 0, stream>>>(data, elements, amount);
    CUDA_CHECK(cudaGetLastError());
  }
};

double alone_ms(const Work& work, cudaStream_t stream, int launches) {
  work.launch(stream);  // loads and warms
  CUDA_CHECK(cudaStreamSynchronize(stream));
  std::vector<double> ms;
  for (int i = 0; i < launches; ++i) ms.push_back(probe::device_ms(stream, [&] { work.launch(stream); }));
  return samples::quantile(ms, 0.5);
}

// Makes one launch last about `wanted_ms`.
void calibrate(Work* work, cudaStream_t stream, double wanted_ms) {
  work->amount = probe::calibrate(stream, wanted_ms, [&](int64_t amount) {
                   work->amount = amount;
                   work->launch(stream);
                 }).amount;
}

struct Beside {
  double alone_ms = 0;
  std::vector<double> slowdowns;  // per launch
  bool covered = false;           // the other one ran before the first of them began, and until the last had ended
};

// For a stream, which goes on when all work of both sides is enqueued: how soon the host enqueues is no part of what is
// measured.
void CUDART_CB wait_until_enqueued(void* enqueued) {
  constexpr std::chrono::seconds kPatience{10};  // of a program that fails meanwhile
  static_cast<std::future<void>*>(enqueued)->wait_for(kPatience);
}

// The other side runs for several times as long as this one does alone, in few launches: the driver's queue must take all.
constexpr int kNeighbours = 8, kMoreThanItLasts = 6, kMostTries = 4;

Beside measure_once(const Work& own, cudaStream_t own_stream, Work other, cudaStream_t other_stream, int launches, double longer) {
  Beside result;
  result.alone_ms = alone_ms(own, own_stream, launches);
  const double other_ms = alone_ms(other, other_stream, 3);
  const double wanted_ms = longer * kMoreThanItLasts * (launches + 1) * result.alone_ms / kNeighbours;
  other.amount *= int64_t(std::max(1.0, std::ceil(wanted_ms / std::max(other_ms, 1e-6))));
  std::vector<cudaEvent_t> ends(size_t(launches) + 1);
  for (cudaEvent_t& end : ends) CUDA_CHECK(cudaEventCreate(&end));
  cudaEvent_t start, other_start, other_end;
  CUDA_CHECK(cudaEventCreateWithFlags(&start, cudaEventDisableTiming));
  CUDA_CHECK(cudaEventCreate(&other_start));
  CUDA_CHECK(cudaEventCreate(&other_end));
  std::promise<void> enqueued;
  std::future<void> all = enqueued.get_future();
  CUDA_CHECK(cudaLaunchHostFunc(own_stream, wait_until_enqueued, &all));
  CUDA_CHECK(cudaEventRecord(start, own_stream));
  CUDA_CHECK(cudaStreamWaitEvent(other_stream, start, 0));
  CUDA_CHECK(cudaEventRecord(other_start, other_stream));
  for (int i = 0; i < kNeighbours; ++i) other.launch(other_stream);
  CUDA_CHECK(cudaEventRecord(other_end, other_stream));
  for (cudaEvent_t end : ends) {  // the first one while the other side comes up to speed
    own.launch(own_stream);
    CUDA_CHECK(cudaEventRecord(end, own_stream));
  }
  enqueued.set_value();
  CUDA_CHECK(cudaStreamSynchronize(own_stream));
  CUDA_CHECK(cudaStreamSynchronize(other_stream));
  const auto between_ms = [](cudaEvent_t from, cudaEvent_t to) {
    float ms = 0;
    CUDA_CHECK(cudaEventElapsedTime(&ms, from, to));
    return double(ms);
  };
  result.covered = between_ms(other_start, ends.front()) > 0 && between_ms(ends.back(), other_end) > 0;
  for (int i = 1; i <= launches; ++i)
    result.slowdowns.push_back(between_ms(ends[size_t(i) - 1], ends[size_t(i)]) / result.alone_ms);
  for (cudaEvent_t end : ends) CUDA_CHECK(cudaEventDestroy(end));
  CUDA_CHECK(cudaEventDestroy(start));
  CUDA_CHECK(cudaEventDestroy(other_start));
  CUDA_CHECK(cudaEventDestroy(other_end));
  return result;
}

// A side that suffers more than was planned for outlasts the other one: once more, then, beside more of it.
Beside measure(const Work& own, cudaStream_t own_stream, const Work& other, cudaStream_t other_stream, int launches) {
  Beside result;
  for (int i = 0; i < kMostTries && !result.covered; ++i)
    result = measure_once(own, own_stream, other, other_stream, launches, 1 << i);
  return result;
}

struct Place {  // where the two sides run
  std::array<cudaStream_t, 2> streams{};
  std::array<int, 2> blocks{};
  std::array<double, 2> share{};  // of the GPU
};

struct Settings {
  double kernel_ms = 1;
  int launches = 50;
  int64_t elements = 0;
  std::array<float*, 2> data{};
};

// Adds {"compute": {"compute": c, "memory": c}, "memory": ...} as `table`, and what was measured.
bool measure_place(const Place& place, const Settings& settings, const std::string& table,
                   probe::Report* report) {
  probe::Report coefficients, details;
  bool covered = true;
  for (int own_kind = 0; own_kind < 2; ++own_kind) {
    probe::Report row;
    for (int other_kind = 0; other_kind < 2; ++other_kind) {
      Work own{own_kind, place.blocks[0], 1, settings.data[0], settings.elements};
      Work other{other_kind, place.blocks[1], 1, settings.data[1], settings.elements};
      calibrate(&own, place.streams[0], settings.kernel_ms);
      calibrate(&other, place.streams[1], settings.kernel_ms);
      const Beside found = measure(own, place.streams[0], other, place.streams[1], settings.launches);
      const double middle = samples::quantile(found.slowdowns, 0.5);
      row.number(kClassNames[other_kind], std::max(0.0, (middle - 1) / place.share[1]));
      probe::Report one;
      one.number("alone_ms", found.alone_ms)
          .spread("slowdown", found.slowdowns)
          .boolean("covered", found.covered);
      details.raw(std::string(kClassNames[own_kind]) + "_beside_" + kClassNames[other_kind], one.str());
      covered &= found.covered;
    }
    coefficients.raw(kClassNames[own_kind], row.str());
  }
  report->raw(table, coefficients.str())
      .raw(table + "_measured", details.str())
      .boolean(table + "_covered", covered);
  return covered;
}

}  // namespace

int main(int argc, char** argv) {
  int64_t mebibytes = 256, launches = 50;
  double kernel_ms = 1;
  samples::parse_options(argc, argv, "H16: contention of pairs of kernels.",
                         {{"--mebibytes", &mebibytes,
                           "that a memory kernel streams over: more than the L2 has"},
                          {"--launches", &launches, "timed per pair"},
                          {"--kernel-ms", &kernel_ms, "length of one launch"}});
  samples::positive("--mebibytes", double(mebibytes));
  samples::positive("--launches", double(launches));
  samples::positive("--kernel-ms", kernel_ms);
  int sms = 0, threads_per_sm = 0;
  CUDA_CHECK(cudaFree(nullptr));  // the primary context
  CUDA_CHECK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
  CUDA_CHECK(cudaDeviceGetAttribute(&threads_per_sm, cudaDevAttrMaxThreadsPerMultiProcessor, 0));
  const int per_sm = std::max(2, threads_per_sm / kThreads);
  probe::Report report("H16");
  probe::add_device(report);
  Settings settings{.kernel_ms = kernel_ms, .launches = int(launches)};
  settings.elements = mebibytes * (1 << 20) / int64_t(sizeof(float));
  for (float*& data : settings.data) {
    data = samples::device_array<float>(size_t(settings.elements));
    CUDA_CHECK(cudaMemset(data, 0, size_t(settings.elements) * sizeof(float)));
  }
  report.number("mebibytes", double(mebibytes)).number("blocks_per_multiprocessor", per_sm);

  Place shared{.blocks = {sms * per_sm / 2, sms * per_sm / 2}, .share = {0.5, 0.5}};
  for (cudaStream_t& stream : shared.streams)
    CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  bool covered = measure_place(shared, settings, "contention", &report);

  const probe::GreenDriver driver;
  const probe::TwoParts parts = probe::split_device(driver, unsigned(std::max(1, sms / 2)));
  report.boolean("disjoint", parts.failed_at.empty());
  if (!parts.failed_at.empty()) {  // "no" is an answer, and the first table stands
    report.text("failed_at", parts.failed_at).number("result", parts.result).print();
    return covered ? 0 : 1;
  }
  const auto count = [](const probe::GreenPart& part) { return int(part.multiprocessors); };
  const Place disjoint{.streams = {parts.first.stream, parts.rest.stream},
                    .blocks = {count(parts.first) * per_sm, count(parts.rest) * per_sm},
                    .share = {double(count(parts.first)) / sms, double(count(parts.rest)) / sms}};
  report.number("multiprocessors_of_first", count(parts.first))
      .number("multiprocessors_of_rest", count(parts.rest));
  covered &= measure_place(disjoint, settings, "contention_disjoint", &report);
  report.print();
  return covered ? 0 : 1;  // else the slowdowns are of less than was asked
}
