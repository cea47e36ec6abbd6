// The loop around a service's request: arrivals at random (open loop, Poisson), latency from the *intended* arrival to the result
// on the host, the report. Used by the main files of the samples that serve. Single-threaded.
#pragma once

#include "support.h"

namespace samples {

struct ServiceOptions {
  int64_t seed = 1, requests = 0, warmup = 3, calibrate = 0;
  double rate = 0, load = 0, service_ms = 0, seconds = 0;
  std::string csv;
  bool verify = false;
};

inline std::vector<Option> service_options(ServiceOptions& o) {
  return {{"--rate", &o.rate, "requests per second"},
          {"--load", &o.load, "instead of --rate: share of time busy, with --service-ms"},
          {"--service-ms", &o.service_ms, "time of one request alone, as --calibrate prints"},
          {"--seconds", &o.seconds,
           "requests that arrive within this time (default 10); lost is what has not begun a quarter of it "
           "later"},
          {"--requests", &o.requests, "at most N requests"},
          {"--warmup", &o.warmup, "requests before the clock starts (default 3)"},
          {"--calibrate", &o.calibrate, "only: this many requests back to back, print their time"},
          {"--verify", &o.verify, "only: one request, compared with the host; exit 1 if wrong"},
          {"--seed", &o.seed, "of arrivals, weights and inputs (default 1)"},
          {"--csv", &o.csv, "file: request,intended_ns,start_ns,end_ns (CLOCK_MONOTONIC over the stretch)"},
          {"--stretch", &clock_stretch, "run this program's clock X times slower"}};
}

struct Request {
  uint64_t intended_ns = 0, start_ns = 0, end_ns = 0;
};

// Requests use these in turn. All are made before the clock starts: making one takes a CPU several times as long as a
// GPU takes to answer it, and a real service would have received it from the network.
constexpr int kInputs = 8;
// After requests have stopped, a service works off its backlog for at most this share of the time in which they arrive.
constexpr double kGraceShare = 0.25;

// The answers to the inputs, and whether every request of one input had the same. Between requests it is one
// comparison; sums are made at the end.
class Answers {
 public:
  void add(int input, const void* output, size_t bytes) {
    std::vector<char>& first = first_[input];
    if (first.empty())
      first.assign(static_cast<const char*>(output), static_cast<const char*>(output) + bytes);
    else if (std::memcmp(first.data(), output, bytes) != 0)
      different_.add(output, bytes);
  }
  uint64_t checksum() const {  // of equal answers it does not depend on how many there were
    Checksum sum = different_;
    for (const std::vector<char>& first : first_) sum.add(first.data(), first.size());
    return sum.value;
  }

 private:
  std::vector<char> first_[kInputs];
  Checksum different_;
};

// A Network can prepare(input), one of kInputs, and run(input), which is a request; its output() of output_bytes() is
// then on the host. largest_error() compares the last request with the host.
template <class Network>
std::vector<double> calibrate(Network& network, int64_t n, Answers& answers) {
  std::vector<double> ms;
  for (int64_t i = 0; i < n; ++i) {
    const uint64_t start = now_ns();
    network.run(int(i % kInputs));
    ms.push_back(double(now_ns() - start) * 1e-6);
    answers.add(int(i % kInputs), network.output(), network.output_bytes());
  }
  return ms;
}

// Intended arrivals relative to the start; the same for the same seed, rate and length.
inline std::vector<uint64_t> arrivals(const ServiceOptions& o, double rate) {
  Random random{uint64_t(o.seed) ^ 0x5851f42d4c957f2du};
  std::vector<uint64_t> result;
  for (double t = 0;;) {
    t += -std::log1p(-random.uniform()) / rate;
    if (o.seconds > 0 && t >= o.seconds) break;
    if (o.requests > 0 && int64_t(result.size()) >= o.requests) break;
    result.push_back(uint64_t(t * 1e9));
  }
  return result;
}

inline void write_csv(const std::string& path, const std::vector<Request>& requests) {
  FILE* file = std::fopen(path.c_str(), "w");
  if (!file) fail("cannot write --csv file", path.c_str());
  std::fprintf(file, "request,intended_ns,start_ns,end_ns\n");
  for (size_t i = 0; i < requests.size(); ++i) {
    const Request& r = requests[i];
    std::fprintf(file, "%zu,%llu,%llu,%llu\n", i, (unsigned long long)r.intended_ns,
                 (unsigned long long)r.start_ns, (unsigned long long)r.end_ns);
  }
  if (std::fclose(file) != 0) fail("cannot write --csv file", path.c_str());
}

inline void report_service_time(const std::vector<double>& ms) {
  double sum = 0;
  for (double x : ms) sum += x;
  std::printf("service_mean_ms=%.4f\nservice_p50_ms=%.4f\nservice_p99_ms=%.4f\n", sum / double(ms.size()),
              quantile(ms, 0.50), quantile(ms, 0.99));
}

// Every request at its time, until `end_ns`: those that have not begun by then are lost.
template <class Network>
std::vector<Request> answer(Network& network, const std::vector<uint64_t>& schedule, uint64_t begin_ns,
                            uint64_t end_ns, Answers& answers) {
  std::vector<Request> requests;
  requests.reserve(schedule.size());
  for (size_t i = 0; i < schedule.size(); ++i) {
    const int input = int(i % kInputs);
    Request r;
    r.intended_ns = begin_ns + schedule[i];
    sleep_until_ns(r.intended_ns);
    r.start_ns = now_ns();
    if (r.start_ns >= end_ns) break;
    network.run(input);
    r.end_ns = now_ns();
    answers.add(input, network.output(), network.output_bytes());
    requests.push_back(r);
  }
  return requests;
}

// The exit status. `sizes` is printed first.
template <class Network>
int serve(Network& network, ServiceOptions o, const char* sizes) {
  positive("--stretch", clock_stretch);
  for (int input = 0; input < kInputs; ++input) network.prepare(input);
  Answers answers;
  calibrate(network, std::max<int64_t>(o.warmup, 1), answers);
  std::printf("%s\n", sizes);
  if (o.verify) {
    const double error = network.largest_error();  // of the last warm-up request
    std::printf("largest_error=%.3g verified=%s\n", error, error < 1e-4 ? "yes" : "no");
    return error < 1e-4 ? 0 : 1;
  }
  if (o.calibrate > 0) {
    report_service_time(calibrate(network, o.calibrate, answers));
    return 0;
  }
  if (o.load > 0) {
    positive("--load needs --service-ms (from --calibrate N), which", o.service_ms);
    o.rate = o.load / (o.service_ms * 1e-3);
  }
  if (!(o.rate > 0)) fail("no arrival rate", "give --rate, or --load with --service-ms");
  if (o.seconds <= 0 && o.requests <= 0) o.seconds = 10;

  const std::vector<uint64_t> schedule = arrivals(o, o.rate);
  const uint64_t begin_ns = now_ns();
  const uint64_t end_ns =
      o.seconds > 0 ? begin_ns + uint64_t(o.seconds * (1 + kGraceShare) * 1e9) : UINT64_MAX;
  const std::vector<Request> requests = answer(network, schedule, begin_ns, end_ns, answers);
  if (!o.csv.empty()) write_csv(o.csv, requests);
  std::vector<double> latency_ms;
  double busy_ms = 0;
  for (const Request& r : requests) {
    latency_ms.push_back(double(r.end_ns - r.intended_ns) * 1e-6);
    busy_ms += double(r.end_ns - r.start_ns) * 1e-6;
  }
  const double span_ms = requests.empty() ? 1 : double(requests.back().end_ns - begin_ns) * 1e-6;
  std::printf("requests=%zu lost=%zu rate=%.3f busy=%.3f\n", requests.size(),
              schedule.size() - requests.size(), o.rate, busy_ms / span_ms);
  std::printf("p50_ms=%.4f\np95_ms=%.4f\np99_ms=%.4f\nmax_ms=%.4f\n", quantile(latency_ms, 0.50),
              quantile(latency_ms, 0.95), quantile(latency_ms, 0.99), quantile(latency_ms, 1.0));
  std::printf("checksum=%016llx\n", (unsigned long long)answers.checksum());
  return 0;
}

}  // namespace samples
