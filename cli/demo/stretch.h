// How much the demo has to stretch the software GPU's time on this machine (docs/softgpu-timing.md), and
// whether the lag that is left changes what the demo says. Main thread only.
#pragma once

#include <functional>

#include "base/result.h"
#include "cli/demo/regime.h"

namespace tessera::cli {

// The largest part of a figure that lag may account for.
inline constexpr double kLagLimit = 0.05;

// Could a figure of the phase be off by more than the limit? Then it proves nothing.
bool lag_matters(const Lag& lag);

// Phases take the same time by the wall's clock: a larger stretch makes them hold fewer requests, down to the fewest.
void set_stretch(double stretch, Setting* setting);

// Measures a phase by `measure`; where lag matters, again with a larger stretch, at most twice (`patience_ends_ns`). `again` is told
// the setting of each repetition. What lags thrice comes back as it is. `setting` keeps the stretch, for later phases.
base::Result<Figures> measure_until_kept_up(
    Setting* setting, const std::function<base::Result<Figures>(const Setting&)>& measure,
    const std::function<void(const Setting&)>& again);

// Finds the least stretch with which this machine keeps up under slicing, where kernels come one slice at a
// time and nothing can be executed long before it is due: short trials, each with the factor that the one
// before it lacked. On a real GPU, or with TESSERA_SOFTGPU_STRETCH, there is nothing to find. Sets `stretch`,
// `rate_per_s` and `seconds` of the setting; returns the service's time per request.
base::Result<double> choose_tempo(double load, Setting* setting);

}  // namespace tessera::cli
