#include "cli/measure/profile_operations.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include <fmt/format.h>

#include "cli/measure/profile.h"
#include "cli/run/client_environment.h"

namespace tessera::cli {
namespace {

constexpr char kPreload[] = "LD_PRELOAD=";

std::string table_in(const std::string& folder) {
  return folder + "/" + kOperationTable;
}

// The kernels in the software GPU's traces that were launched below counted calls, by the calls' slot.
profiles::Launches launches_below_calls(const std::string& folder) {
  profiles::Launches launches;
  std::error_code problem;
  for (const auto& entry : std::filesystem::directory_iterator(folder, problem)) {
    if (entry.path().extension() != ".csv") continue;
    const auto read = read_trace(entry.path().string(), [&](const profiles::Activity& kernel) {
      add_launch(launches, kernel.tag, double(kernel.end_ns - kernel.start_ns));
    });
    if (!read) return {};  // whoever reads the kernels has said why
  }
  return launches;
}

}  // namespace

void count_operations(const Layout& layout, const std::string& folder,
                      std::vector<std::string>& environment) {
  if (!file_exists(layout.preload_ops)) {
    fprintf(stderr, "tessera profile: %s is missing, library calls are not counted\n",
            layout.preload_ops.c_str());
    return;
  }
  if (auto made = profiles::make_operation_table(table_in(folder)); !made) {
    fprintf(stderr, "tessera profile: %s: library calls are not counted\n", made.error().text.c_str());
    return;
  }
  environment.push_back("TESSERA_OPERATIONS_TABLE=" + table_in(folder));
  const auto present = std::find_if(environment.begin(), environment.end(),
                                    [](const std::string& v) { return v.starts_with(kPreload); });
  if (present != environment.end()) {
    *present += ":" + layout.preload_ops;
    return;
  }
  const std::string old = own_environment("LD_PRELOAD");
  environment.push_back(kPreload + (old.empty() ? "" : old + ":") + layout.preload_ops);
}

void add_operations(const std::string& folder, const profiles::GpuDescription* gpu, profiles::Profile& out) {
  if (!file_exists(table_in(folder))) return;
  auto counted = profiles::read_operation_table(table_in(folder), gpu, launches_below_calls(folder));
  if (!counted) {
    fprintf(stderr, "tessera profile: %s\n", counted.error().text.c_str());
    return;
  }
  if (counted->further_calls)
    fprintf(stderr, "tessera profile: %llu library calls of further shapes are left out\n",
            static_cast<unsigned long long>(counted->further_calls));
  profiles::Profile more;
  more.operations = std::move(counted->operations);
  profiles::merge(out, more);
}

std::string top_operations(const profiles::Profile& profile, size_t n) {
  const profiles::Operations& operations = profile.operations;
  if (operations.empty()) return "";
  std::vector<const profiles::Operations::value_type*> order;
  for (const auto& one : operations) order.push_back(&one);
  const profiles::OperationShares shares(profile);
  // The order is by computation if no durations are known.
  std::stable_sort(order.begin(), order.end(), [&](const auto* a, const auto* b) {
    return std::pair(shares.of(a->second), a->second.flop) > std::pair(shares.of(b->second), b->second.flop);
  });
  std::string out = fmt::format("{:<30} {:<24} {:<6} {:>8} {:>9} {:>8} {:>8} {:>6}  {}\n", "OPERATION",
                                "SHAPE", "TYPE", "CALLS", "GFLOP", "OP/BYTE", "GFLOP/s", "SHARE", "CLASS");
  for (size_t i = 0; i < std::min(n, order.size()); ++i) {
    const auto& [key, record] = *order[i];
    out += fmt::format("{:<30} {:<24} {:<6} {:>8} {:>9.3g} {:>8} {:>8} {:>6}  {}\n", key.name, key.shape,
                       key.type, record.calls, double(record.flop) / 1e9,
                       record.bytes ? fmt::format("{:.2f}", double(record.flop) / double(record.bytes)) : "-",
                       record.gpu_ns > 0 ? fmt::format("{:.3g}", double(record.flop) / record.gpu_ns) : "-",
                       shares.of(record) > 0 ? fmt::format("{:.1f}%", shares.of(record) * 100) : "-",
                       profiles::class_name(record.bound));
  }
  if (order.size() > n) out += fmt::format("... and {} more\n", order.size() - n);
  return out;
}

}  // namespace tessera::cli
