// The commands of `tessera`, in the order of its help. Each adds itself; when it was named, it leaves its exit status.
#pragma once

#include <CLI/CLI.hpp>

#define TS_COMMANDS(TS_ROW) \
  TS_ROW(run)               \
  TS_ROW(ps)                \
  TS_ROW(top)               \
  TS_ROW(trace)             \
  TS_ROW(explain)           \
  TS_ROW(set)               \
  TS_ROW(park)              \
  TS_ROW(exporter)          \
  TS_ROW(inspect)           \
  TS_ROW(prepare)           \
  TS_ROW(ptxas)             \
  TS_ROW(cdi)               \
  TS_ROW(doctor)            \
  TS_ROW(stop)              \
  TS_ROW(reload)            \
  TS_ROW(demo)              \
  TS_ROW(simulate)          \
  TS_ROW(profile)           \
  TS_ROW(calibrate)

namespace tessera::cli {

#define TS_ROW(name) void add_##name(CLI::App& app, int* status);
TS_COMMANDS(TS_ROW)
#undef TS_ROW

}  // namespace tessera::cli
