// Measures a protected service beside a best-effort program as `tessera demo` does: in the software GPU's stretched
// time, again where lag mattered. Called by run.py; prints one object of JSON. Main thread only.
// usage: framework_pair OUT_FOLDER SECONDS 'JSON of {"service": [WORD...], "trainer": [...], "run_options": [...]}'
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "cli/demo/measure.h"
#include "cli/demo/process.h"
#include "cli/demo/regime.h"
#include "cli/demo/stretch.h"

namespace tessera {
namespace {

using cli::Figures;
using cli::Phase;
using cli::Setting;
using cli::Sharing;
using nlohmann::json;

constexpr double kLoad = 0.5;      // of the service, as the demo's
constexpr double kCompileS = 300;  // frameworks compile when they run; XLA for 20 s of a processor
constexpr double kMostStretch =
    128;  // a request of 4 ms takes half a second then, and a phase a minute or two
constexpr double kLeastRequests = 100;  // a 99th percentile of fewer is the worst of them

const Phase kBeside = {"beside", true, true, true, Sharing::kTimeSliced};
const Phase kAlone = {"alone", true, false, false, Sharing::kTimeSliced};

json figures_json(const Figures& figures) {
  return {{"p50_ms", cli::quantile(figures.latency_ms, 0.50)},
          {"p99_ms", cli::quantile(figures.latency_ms, 0.99)},
          {"requests", figures.latency_ms.size()},
          {"lag_share", figures.lag.share},
          {"p99_over_p99_without_lag", figures.lag.service_p99}};
}

base::Result<Figures> measure(const Phase& phase, Setting* setting) {
  return cli::measure_until_kept_up(
      setting, [&](const Setting& present) { return cli::run_phase(phase, present, [](double, double) {}); },
      [&](const Setting& slower) {
        fprintf(stderr, "%s: lagged, again with stretch %.3g\n", phase.name.c_str(), slower.stretch);
      });
}

base::Result<json> measure_pair(double seconds, Setting* setting) {
  setting->wall_seconds = seconds;
  setting->least_requests = kLeastRequests;
  const auto service_ms = cli::choose_tempo(kLoad, setting);
  if (!service_ms) return service_ms.error();
  const auto beside = measure(kBeside, setting);
  if (!beside) return beside.error();
  const auto alone = measure(kAlone, setting);
  if (!alone) return alone.error();
  const auto over = [&](double q) {
    return cli::quantile(beside->latency_ms, q) / cli::quantile(alone->latency_ms, q);
  };
  return json{{"stretch", beside->stretch},
              {"service_ms", *service_ms},
              {"beside", figures_json(*beside)},
              {"alone", figures_json(*alone)},
              {"p50_over_alone", over(0.50)},
              {"p99_over_alone", over(0.99)},
              {"preemptions", beside->preemptions},
              {"service_equal",
               !alone->service_checksum.empty() && alone->service_checksum == beside->service_checksum},
              {"valid", !cli::lag_matters(beside->lag) && !cli::lag_matters(alone->lag)}};
}

int run(const std::string& out, double seconds, const std::string& workload) {
  const json wanted = json::parse(workload, nullptr, /*allow_exceptions=*/false);
  Setting setting;
  setting.layout = cli::find_layout();
  setting.out = out;
  setting.workload.service = wanted.value("service", std::vector<std::string>());
  setting.workload.trainer = wanted.value("trainer", std::vector<std::string>());
  setting.most_stretch = kMostStretch;
  setting.workload.compile_s = kCompileS;
  setting.workload.run_options = wanted.value("run_options", std::vector<std::string>());
  cli::catch_interrupts();
  const auto measured = measure_pair(seconds, &setting);
  if (!measured) {
    fprintf(stderr, "framework_pair: %s\n", measured.error().text.c_str());
    return 1;
  }
  puts(measured->dump().c_str());
  return 0;
}

}  // namespace
}  // namespace tessera

int main(int count, char** words) {
  if (count != 4) {
    fprintf(stderr, "usage: framework_pair OUT_FOLDER SECONDS JSON\n");
    return 2;
  }
  return tessera::run(words[1], strtod(words[2], nullptr), words[3]);
}
