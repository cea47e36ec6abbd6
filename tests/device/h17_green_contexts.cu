// H17, green contexts: do two of them keep off each other's multiprocessors while both run, does the next launch on
// another one change the place at once, what does it cost to make one, and what does a launch lose that leaves its
// stream for that of a green context and comes back (two waits for events: the simulator's `confine_us`)?
#include "green.h"

namespace {

struct Probe {  // one side: where its blocks ran
  unsigned* seen = nullptr;
  int blocks = 0;
  void launch(cudaStream_t stream, int rounds) const {
    probe::where<<<unsigned(blocks), 128, 0, stream>>>(seen, rounds);
    CUDA_CHECK(cudaGetLastError());
  }
  std::set<unsigned> multiprocessors() const { return probe::multiprocessors_of(seen, blocks); }
};

Probe make_probe(int blocks) {
  return {samples::device_array<unsigned>(size_t(blocks)), blocks};
}

bool disjoint(const std::set<unsigned>& a, const std::set<unsigned>& b) {
  return std::none_of(a.begin(), a.end(), [&](unsigned id) { return b.count(id) != 0; });
}

// Both parts at once, several times: the sets of all rounds together.
void isolation(const probe::TwoParts& parts, int sms, int rounds, probe::Report* report) {
  constexpr int kTimes = 5;
  const Probe first = make_probe(sms * 8), rest = make_probe(sms * 8);
  std::set<unsigned> of_first, of_rest;
  for (int i = 0; i < kTimes; ++i) {
    first.launch(parts.first.stream, rounds);
    rest.launch(parts.rest.stream, rounds);
    CUDA_CHECK(cudaStreamSynchronize(parts.first.stream));
    CUDA_CHECK(cudaStreamSynchronize(parts.rest.stream));
    of_first.merge(first.multiprocessors());
    of_rest.merge(rest.multiprocessors());
  }
  report->number("multiprocessors_of_first", parts.first.multiprocessors)
      .number("multiprocessors_of_rest", parts.rest.multiprocessors)
      .number("used_by_first", double(of_first.size()))
      .number("used_by_rest", double(of_rest.size()))
      .boolean("disjoint", disjoint(of_first, of_rest));
}

// One launch here, the next there: each must be where its stream says.
void alternation(const probe::TwoParts& parts, int sms, int rounds, probe::Report* report) {
  constexpr int kTurns = 10;
  std::vector<Probe> probes;
  for (int i = 0; i < kTurns; ++i) {
    probes.push_back(make_probe(sms * 4));
    probes.back().launch(i % 2 == 0 ? parts.first.stream : parts.rest.stream, rounds);
  }
  CUDA_CHECK(cudaDeviceSynchronize());
  std::set<unsigned> even, odd;
  for (int i = 0; i < kTurns; ++i) (i % 2 == 0 ? even : odd).merge(probes[size_t(i)].multiprocessors());
  report->boolean("changes_with_the_next_launch", disjoint(even, odd));
}

void cost_of_making(const probe::GreenDriver& driver, unsigned multiprocessors, int times,
                    probe::Report* report) {
  std::vector<double> make_us, destroy_us;
  for (int i = 0; i < times; ++i) {
    uint64_t start = probe::now_ns();
    CUdevResource whole{}, part{};
    unsigned groups = 1;
    const char* step = nullptr;
    probe::GreenPart made;
    probe::driver_check(driver.get_resource(0, &whole, CU_DEV_RESOURCE_TYPE_SM), "cuDeviceGetDevResource");
    probe::driver_check(driver.split(&part, &groups, &whole, nullptr, 0, multiprocessors),
                        "cuDevSmResourceSplitByCount");
    probe::driver_check(probe::make_part(driver, part, &made, &step), "making a green context");
    make_us.push_back(double(probe::now_ns() - start) * 1e-3);
    CUDA_CHECK(cudaStreamDestroy(made.stream));
    start = probe::now_ns();
    probe::driver_check(driver.destroy(made.context), "cuGreenCtxDestroy");
    destroy_us.push_back(double(probe::now_ns() - start) * 1e-3);
  }
  report->spread("make_us", make_us).spread("destroy_us", destroy_us);
}

// A chain of launches in one stream, and the same with every launch in the part's stream, between two events.
void cost_of_crossing(cudaStream_t stream, cudaStream_t part, const Probe& work, int rounds, int launches,
                      probe::Report* report) {
  cudaEvent_t there, back;
  CUDA_CHECK(cudaEventCreateWithFlags(&there, cudaEventDisableTiming));
  CUDA_CHECK(cudaEventCreateWithFlags(&back, cudaEventDisableTiming));
  const auto in_one = [&](cudaStream_t where) {
    for (int i = 0; i < launches; ++i) work.launch(where, rounds);
  };
  const auto crossing = [&] {
    for (int i = 0; i < launches; ++i) {
      CUDA_CHECK(cudaEventRecord(there, stream));
      CUDA_CHECK(cudaStreamWaitEvent(part, there, 0));
      work.launch(part, rounds);
      CUDA_CHECK(cudaEventRecord(back, part));
      CUDA_CHECK(cudaStreamWaitEvent(stream, back, 0));
    }
  };
  crossing();  // loads and warms
  CUDA_CHECK(cudaDeviceSynchronize());
  std::vector<double> added_us;
  for (int i = 0; i < 5; ++i) {
    const double plain_ms = probe::device_ms(part, [&] { in_one(part); });
    const double crossing_ms = probe::device_ms(stream, crossing);
    added_us.push_back((crossing_ms - plain_ms) * 1e3 / launches);
  }
  report->spread("crossing_us", added_us);
}

}  // namespace

int main(int argc, char** argv) {
  int64_t rounds = 20000, times = 50, launches = 200;
  samples::parse_options(argc, argv, "H17: green contexts, isolation and cost of changing.",
                         {{"--rounds", &rounds, "work per block"},
                          {"--times", &times, "green contexts made"},
                          {"--launches", &launches, "in a chain"}});
  int sms = 0;
  CUDA_CHECK(cudaFree(nullptr));  // the primary context
  CUDA_CHECK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
  probe::Report report("H17");
  probe::add_device(report);
  const probe::GreenDriver driver;
  const probe::TwoParts parts = probe::split_device(driver, unsigned(std::max(1, sms / 4)));
  report.boolean("created", parts.failed_at.empty());
  if (!parts.failed_at.empty()) {  // "no" is an answer
    report.text("failed_at", parts.failed_at).number("result", parts.result).print();
    return 0;
  }
  isolation(parts, sms, int(rounds), &report);
  alternation(parts, sms, int(rounds), &report);
  cost_of_making(driver, parts.first.multiprocessors, int(times), &report);
  cudaStream_t stream;
  CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  cost_of_crossing(stream, parts.first.stream, make_probe(int(parts.first.multiprocessors)),
                   int(rounds) / 10 + 1, int(launches), &report);
  report.print();
}
