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
  return {
      {"--rate", Option::kReal, &o.rate, "requests per second"},
      {"--load", Option::kReal, &o.load, "instead of --rate: share of time busy, with --service-ms"},
      {"--service-ms", Option::kReal, &o.service_ms, "time of one request alone, as --calibrate prints"},
      {"--seconds", Option::kReal, &o.seconds, "requests that arrive within this time (default 10)"},
      {"--requests", Option::kInt, &o.requests, "at most so many requests"},
      {"--warmup", Option::kInt, &o.warmup, "requests before the clock starts (default 3)"},
      {"--calibrate", Option::kInt, &o.calibrate, "only: this many requests back to back, print their time"},
      {"--verify", Option::kFlag, &o.verify, "only: one request, compared with the host; exit 1 if wrong"},
      {"--seed", Option::kInt, &o.seed, "of arrivals, weights and inputs (default 1)"},
      {"--csv", Option::kText, &o.csv,
       "file: request,intended_ns,start_ns,end_ns (CLOCK_MONOTONIC over the stretch)"},
      {"--stretch", Option::kReal, &clock_stretch, "run this program's clock so many times slower"}};
}

struct Request {
  uint64_t intended_ns = 0, start_ns = 0, end_ns = 0;
};

// A Network can prepare(number) the input of a request, run() it, and has its output() of output_bytes() on the host;
// largest_error() compares the last request with the host.
template <class Network>
std::vector<double> calibrate(Network& network, int64_t n) {
  std::vector<double> ms;
  for (int64_t i = 0; i < n; ++i) {
    network.prepare(i);
    const uint64_t start = now_ns();
    network.run();
    ms.push_back(double(now_ns() - start) * 1e-6);
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

// Every request at its time; what the requests computed goes into the checksum.
template <class Network>
std::vector<Request> answer(Network& network, const std::vector<uint64_t>& schedule, uint64_t begin_ns,
                            Checksum& checksum) {
  std::vector<Request> requests;
  for (size_t i = 0; i < schedule.size(); ++i) {
    network.prepare(int64_t(i));
    Request r;
    r.intended_ns = begin_ns + schedule[i];
    sleep_until_ns(r.intended_ns);
    r.start_ns = now_ns();
    network.run();
    r.end_ns = now_ns();
    checksum.add(network.output(), network.output_bytes());
    requests.push_back(r);
  }
  return requests;
}

// The exit status. `sizes` is printed first.
template <class Network>
int serve(Network& network, ServiceOptions o, const char* sizes) {
  positive("--stretch", clock_stretch);
  calibrate(network, std::max<int64_t>(o.warmup, 1));
  std::printf("%s\n", sizes);
  if (o.verify) {
    const double error = network.largest_error();  // of the last warm-up request
    std::printf("largest_error=%.3g verified=%s\n", error, error < 1e-4 ? "yes" : "no");
    return error < 1e-4 ? 0 : 1;
  }
  if (o.calibrate > 0) {
    report_service_time(calibrate(network, o.calibrate));
    return 0;
  }
  if (o.load > 0) {
    positive("--load needs --service-ms (from --calibrate N), which", o.service_ms);
    o.rate = o.load / (o.service_ms * 1e-3);
  }
  if (!(o.rate > 0)) fail("no arrival rate", "give --rate, or --load with --service-ms");
  if (o.seconds <= 0 && o.requests <= 0) o.seconds = 10;

  Checksum checksum;
  const uint64_t begin_ns = now_ns() + 20000000;  // the first input is ready by then
  const std::vector<Request> requests = answer(network, arrivals(o, o.rate), begin_ns, checksum);
  if (!o.csv.empty()) write_csv(o.csv, requests);
  std::vector<double> latency_ms;
  double busy_ms = 0;
  for (const Request& r : requests) {
    latency_ms.push_back(double(r.end_ns - r.intended_ns) * 1e-6);
    busy_ms += double(r.end_ns - r.start_ns) * 1e-6;
  }
  const double span_ms = requests.empty() ? 1 : double(requests.back().end_ns - begin_ns) * 1e-6;
  std::printf("requests=%zu rate=%.3f busy=%.3f\n", requests.size(), o.rate, busy_ms / span_ms);
  std::printf("p50_ms=%.4f\np95_ms=%.4f\np99_ms=%.4f\nmax_ms=%.4f\n", quantile(latency_ms, 0.50),
              quantile(latency_ms, 0.95), quantile(latency_ms, 0.99), quantile(latency_ms, 1.0));
  std::printf("checksum=%016llx\n", (unsigned long long)checksum.value);
  return 0;
}

}  // namespace samples
