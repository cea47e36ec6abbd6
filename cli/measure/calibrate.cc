#include "cli/measure/calibrate.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "base/user_file.h"
#include "cli/demo/process.h"
#include "cli/measure/profile.h"
#include "cli/run/child_output.h"
#include "cli/run/layout.h"
#include "cli/run/run.h"

namespace tessera::cli {
namespace {

using base::Code;
using nlohmann::json;

struct Row {
  const char *key, *comment;
  const char* measured;  // field of the program's output, or null
  double scale;          // output unit -> file unit
  // From the description that is refined, file unit; null: `usual`.
  double (*known)(const profiles::GpuDescription&);
  double usual;
};
struct Section {
  const char* name;
  std::vector<Row> rows;
};

using Gpu = profiles::GpuDescription;

const Section kSections[] = {
    {"sm",
     {{"count", "driver", "sms", 1, nullptr, 0},
      {"clock_mhz", "driver", "clock_mhz", 1, nullptr, 0},
      {"issue_per_clock", "", nullptr, 1, [](const Gpu& g) { return g.sm.issue_per_clock; }, 4},
      {"warp_issue_per_clock", "", nullptr, 1, [](const Gpu& g) { return g.sm.warp_issue_per_clock; }, 0.25},
      {"bytes_per_clock", "", nullptr, 1, [](const Gpu& g) { return g.sm.bytes_per_clock; }, 64},
      {"max_threads", "driver", "sm_threads", 1, nullptr, 0},
      {"max_blocks", "driver", "sm_blocks", 1, nullptr, 0},
      {"registers", "driver", "sm_registers", 1, nullptr, 0},
      {"shared_bytes", "driver", "sm_shared_bytes", 1, nullptr, 0}}},
    {"block",
     {{"shared_optin_bytes", "driver", "block_shared_optin_bytes", 1, nullptr, 0},
      {"reserved_shared_bytes", "driver", "block_reserved_shared_bytes", 1, nullptr, 0}}},
    {"memory",
     {{"bytes", "driver", "memory_bytes", 1, nullptr, 0},
      {"gb_per_s", "measured: copy kernel, bytes read and written", "memory_bytes_per_s", 1e-9, nullptr, 0},
      {"clock_mhz", "driver", "memory_clock_mhz", 1, nullptr, 0},
      {"bus_bits", "driver", "bus_bits", 1, nullptr, 0},
      {"l2_bytes", "driver", "l2_bytes", 1, nullptr, 0}}},
    {"transfer",
     {{"h2d_gb_per_s", "measured, page-locked", "h2d_bytes_per_s", 1e-9, nullptr, 0},
      {"d2h_gb_per_s", "measured, page-locked", "d2h_bytes_per_s", 1e-9, nullptr, 0},
      {"overhead_us", "measured: 64 bytes", "copy_overhead_us", 1, nullptr, 0},
      {"engines", "driver", "engines", 1, nullptr, 0}}},
    {"peak",
     {{"fp64_tflops", "measured: multiply-add", "fp64_per_s", 1e-12, nullptr, 0},
      {"fp32_tflops", "measured: multiply-add", "fp32_per_s", 1e-12, nullptr, 0},
      {"fp16_tflops", "measured: two-wide multiply-add", "fp16_per_s", 1e-12, nullptr, 0},
      {"tensor_fp64_tflops", "", nullptr, 1, [](const Gpu& g) { return g.peak.tensor_fp64 / 1e12; }, 0},
      {"tensor_tf32_tflops", "", nullptr, 1, [](const Gpu& g) { return g.peak.tensor_tf32 / 1e12; }, 0},
      {"tensor_fp16_tflops", "measured: mma.sync by wmma; below what wgmma reaches on Hopper",
       "tensor_fp16_per_s", 1e-12, nullptr, 0},
      {"tensor_fp8_tflops", "", nullptr, 1, [](const Gpu& g) { return g.peak.tensor_fp8 / 1e12; }, 0},
      {"tensor_int8_tops", "", nullptr, 1, [](const Gpu& g) { return g.peak.tensor_int8 / 1e12; }, 0}}},
    {"time",
     {{"launch_overhead_us", "measured: empty kernels in a row", "launch_us", 1, nullptr, 0},
      {"slice_us", "measured: one kernel in eight pieces, per piece more", "slice_us", 1, nullptr, 0},
      {"block_overhead_ns", "", nullptr, 1, [](const Gpu& g) { return g.time.block_overhead_ns; }, 20},
      {"timeslice_us", "", nullptr, 1, [](const Gpu& g) { return g.time.timeslice_ns / 1e3; }, 2000},
      {"switch_us", "", nullptr, 1, [](const Gpu& g) { return g.time.switch_ns / 1e3; }, 100}}},
};

int not_calibrated(const std::string& text, int status) {
  fprintf(stderr, "tessera calibrate: %s\n", text.c_str());
  return status;
}

// The program's standard output; an error if it did not end well.
base::Result<std::string> output_of(const std::string& program, const std::vector<std::string>& environment) {
  ChildOutput child = output_of_child([&] {
    set_variables(environment);
    execl(program.c_str(), program.c_str(), nullptr);
  });
  if (!child.ended_well())
    return base::error(Code::kUnavailable, "the measuring program " + program + " failed, see above");
  return std::move(child.text);
}

constexpr uint64_t kBlocksPerSm = 8;  // of the arithmetic tests in kernels/samples/calibrate.cu

// Arithmetic on the software GPU: a CPU that emulates tensor cores is late, and events show it
// (docs/softgpu-timing.md). The kernels' own modelled times do not: those stand for the figures of the
// program. The median of the launches that did most, without the first of them, which the model still took
// for the size before.
std::string with_modelled_peaks(const std::string& printed, const std::string& trace) {
  const struct {
    const char *field, *pipe;
  } peaks[] = {{"fp64_per_s", "fp64"},
               {"fp32_per_s", "fp32"},
               {"fp16_per_s", "fp16"},
               {"tensor_fp16_per_s", "tensor"}};
  json measured = json::parse(printed, nullptr, false);
  if (!measured.is_object() || !measured.contains("sms") || !measured["sms"].is_number()) return printed;
  const auto blocks = uint64_t(measured["sms"].get<double>()) * kBlocksPerSm;
  for (const auto& peak : peaks) {
    double most = 0;
    std::vector<double> ns;  // of the launches with that much
    const auto read = read_trace(trace, [&](const profiles::Activity& kernel) {
      const auto at = kernel.operations.find(peak.pipe);
      if (kernel.n_blocks != blocks || at == kernel.operations.end() || at->second < most ||
          kernel.end_ns <= kernel.start_ns)
        return;
      if (at->second > most) ns.clear();
      most = at->second;
      ns.push_back(double(kernel.end_ns - kernel.start_ns));
    });
    if (!read || ns.empty()) continue;
    if (ns.size() > 1) ns.erase(ns.begin());
    std::nth_element(ns.begin(), ns.begin() + ptrdiff_t(ns.size() / 2), ns.end());
    measured[peak.field] = most / ns[ns.size() / 2] * 1e9;
  }
  return base::json_text(measured);
}

// The one trace in a folder; "" if there is none.
std::string trace_in(const std::string& folder) {
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(folder, none))
    if (entry.path().extension() == ".csv") return entry.path().string();
  return "";
}

}  // namespace

base::Result<std::string> description_of(const std::string& measured_json, const Gpu* base) {
  const json measured = json::parse(measured_json, nullptr, false);
  if (!measured.is_object() || !measured.contains("name") || !measured["name"].is_string())
    return base::error(Code::kInvalid, "the measuring program printed something else than its figures");
  std::string name, seed = "tessera calibrated";
  for (char c : measured["name"].get<std::string>()) {
    if (c < 0x20 || c >= 0x7f || c == '"' || c == '\\') c = ' ';
    name += c;
    if (isalnum((unsigned char)c)) seed += char(tolower(c));
  }
  std::string out = fmt::format(
      "# {}, written by `tessera calibrate`. Sources: measured on the device, what its driver says, else as "
      "given behind each\n# figure.\nname = \"{}\"\nuuid_seed = \"{}\"\ncompute_capability = [{}, {}]\n",
      name, name, seed, measured.value("cc_major", 0), measured.value("cc_minor", 0));
  for (const Section& section : kSections) {
    out += fmt::format("\n[{}]\n", section.name);
    for (const Row& row : section.rows) {
      double value = row.usual;
      std::string source = "assumed";
      if (row.measured) {
        const auto found = measured.find(row.measured);
        if (found == measured.end() || !found->is_number() || !std::isfinite(found->get<double>()) ||
            found->get<double>() < 0)
          return base::error(Code::kInvalid, std::string("the measuring program gave no usable figure '") +
                                                 row.measured + "'");
        value = found->get<double>() * row.scale;
        source = row.comment;
      } else if (base) {
        value = row.known(*base);
        source = "from " + base->path.substr(base->path.rfind('/') + 1);
      } else if (value == 0) {
        continue;  // nothing known: a peak that is left out counts as none
      }
      out += fmt::format("{:<29} # {}\n", fmt::format("{} = {:.6g}", row.key, value), source);
    }
  }
  auto parsed = profiles::parse_gpu_description(out, "the measured description");
  if (!parsed) return base::error(Code::kInvalid, "the figures make no sense: " + parsed.error().text);
  return out;
}

int calibrate(const CalibrateOptions& options) {
  const Layout layout = find_layout();
  RunOptions run;
  run.gpu = options.gpu;
  run.passthrough = true;
  std::string why_not;
  if (options.gpu == "auto" && !real_gpu_present(&why_not))
    return not_calibrated(why_not + "; --gpu soft calibrates the software GPU", 2);
  auto environment = client_environment(run, layout);
  if (!environment) return not_calibrated(environment.error().text, 2);
  const std::string program = layout.bin + "/calibrate";
  if (!file_exists(program)) return not_calibrated(program + " is missing: build the target `calibrate`", 2);
  Gpu described;
  const Gpu* base = nullptr;
  Scratch scratch;
  if (options.gpu == "soft") {
    auto found = soft_description(layout);
    if (!found) return not_calibrated(found.error().text, 2);
    described = *found;
    base = &described;
    if (scratch.path().empty())
      return not_calibrated(std::string("cannot make a folder: ") + strerror(errno), 2);
    environment->push_back("TESSERA_SOFTGPU_DIR=" + scratch.path());
    environment->push_back("TESSERA_SOFTGPU_TRACE=" + scratch.path());
    environment->push_back("TESSERA_SOFTGPU_LINGER_MS=500");
    environment->push_back("TESSERA_SOFTGPU_GPU=" + described.path);
  }
  const auto printed = output_of(program, *environment);
  if (!printed) return not_calibrated(printed.error().text, 1);
  const auto text =
      description_of(base ? with_modelled_peaks(*printed, trace_in(scratch.path())) : *printed, base);
  if (!text) return not_calibrated(text.error().text, 1);
  if (options.output.empty()) return fputs(text->c_str(), stdout) < 0 ? 1 : 0;
  const base::Status written = base::write_user_file(options.output, *text);
  if (!written.ok()) return not_calibrated(written.error().text, 1);
  fprintf(stderr, "written to %s\n", options.output.c_str());
  return 0;
}

}  // namespace tessera::cli
