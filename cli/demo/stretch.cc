#include "cli/demo/stretch.h"

#include <stdlib.h>

#include <algorithm>

#include "base/clock.h"
#include "cli/run/duration.h"

namespace tessera::cli {
namespace {

// A trial finds what the machine does now; in the next minutes it may be busier. A larger stretch costs no
// time, only requests.
constexpr double kMargin = 2;
// Requests of a trial; hundreds of slices run between them.
constexpr double kTrialRequests = 50;

constexpr double kMostGivenStretch = 1000;  // as the software GPU takes it

const Phase kTrial = {"trial", true, true, true, Sharing::kTimeSliced};

// A phase that lagged is measured again, slower; what lags thrice is no accident.
constexpr int kRepeats = 2;

bool is_late(const Setting& setting) {
  return base::now_ns() >= setting.patience_ends_ns;
}

double larger_stretch(const Setting& setting, const Lag& lag) {
  const double wanted = is_late(setting) ? setting.most_stretch : setting.stretch * lag.stretch * kMargin;
  // The user may have given one above the limit.
  return std::max(setting.stretch, std::min(setting.most_stretch, wanted));
}

bool is_worth_repeating(const Setting& setting, const Lag& lag) {
  return lag_matters(lag) && !(is_late(setting) && setting.stretch >= setting.most_stretch);
}

}  // namespace

bool lag_matters(const Lag& lag) {
  return lag.share > kLagLimit || lag.service_p99 > 1 + kLagLimit;
}

void set_stretch(double stretch, Setting* setting) {
  setting->stretch = stretch;
  setting->seconds = std::max(setting->wall_seconds / stretch, setting->least_requests / setting->rate_per_s);
}

base::Result<Figures> measure_until_kept_up(
    Setting* setting, const std::function<base::Result<Figures>(const Setting&)>& measure,
    const std::function<void(const Setting&)>& again) {
  auto figures = measure(*setting);
  for (int repeats = 0; repeats < kRepeats && figures && is_worth_repeating(*setting, figures->lag);
       ++repeats) {
    set_stretch(larger_stretch(*setting, figures->lag), setting);
    again(*setting);
    figures = measure(*setting);
  }
  return figures;
}

base::Result<double> choose_tempo(double load, Setting* setting) {
  const char* wanted = getenv("TESSERA_SOFTGPU_STRETCH");
  const bool given = wanted && *wanted;
  if (given && setting->soft) {
    const auto stretch = parse_number(wanted, 1, kMostGivenStretch);
    if (!stretch)
      return base::error(base::Code::kInvalid, "TESSERA_SOFTGPU_STRETCH: " + stretch.error().text);
    setting->stretch = *stretch;
  }
  for (;;) {
    const auto service_ms = calibrate_service(*setting);
    if (!service_ms) return service_ms.error();
    setting->rate_per_s = load * 1e3 / *service_ms;
    set_stretch(setting->stretch, setting);
    if (given || !setting->soft || setting->stretch >= setting->most_stretch) return *service_ms;
    Setting trial = *setting;
    trial.seconds = kTrialRequests / setting->rate_per_s;
    const auto figures = run_phase(kTrial, trial, [](double, double) {});
    if (!figures) return figures.error();
    if (figures->lag.stretch <= 1 && !lag_matters(figures->lag)) return *service_ms;
    setting->stretch = larger_stretch(*setting, figures->lag);
  }
}

}  // namespace tessera::cli
