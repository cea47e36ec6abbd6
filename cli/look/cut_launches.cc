#include "cli/look/cut_launches.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "cli/look/client_table.h"

namespace tessera::cli {
namespace {

using nlohmann::json;

// The remedy for a long wait behind a kernel that cannot be cut.
constexpr char kConfine[] =
    "confine: under MPS (mps.mode) it keeps off some SMs; without, only in gaps that are longer";

// Rows: outcome as ipc/abi/cutting.h names it, what its launches are, what helps ("": nothing), by which way.
struct Obstacle {
  const char *name, *text, *remedy = "", *way = "";
};
constexpr Obstacle kObstacles[] = {
    {"no_ptx", "machine code without PTX for this GPU",
     "--keep-ptx, for what Triton, torch.compile or XLA compiles as it runs; else a build with PTX", "cut"},
    {"nvidia_library", "NVIDIA's libraries", "--split-operations", "split"},
    {"waiting", "blocks that wait for each other"},
    {"order", "results that depend on the order of blocks", "--allow-order-dependent", "cut"},
    {"unclear", "kernels that were not understood"},
    {"bits", "last bits that compiling again may change", "tessera prepare, or --bit-stability relaxed",
     "cut"},
    {"module_state", "kernels that need their own module"},
    {"whole", "graphs and cooperative launches"},
    {"other", "limits, attributes and unread images"},
    {"off", "slicing that the user switched off", "TESSERA_SLICE=1, or leave it unset", "cut"},
};
constexpr double kLeastPart = 0.005;  // below that it says nothing

struct Amount {
  double launches = 0, gpu_ns = 0;
  Amount& operator+=(const Amount& more) {
    launches += more.launches, gpu_ns += more.gpu_ns;
    return *this;
  }
  // By time; by count while nothing was timed.
  double share_of(const Amount& all) const {
    return all.gpu_ns > 0 ? gpu_ns / all.gpu_ns : launches / all.launches;
  }
};

Amount amount_of(const json& client, const char* outcome) {
  Amount sum;
  const auto rows = client.find("outcomes");
  if (rows == client.end() || !rows->is_array()) return sum;
  for (const json& row : *rows)
    if (row.is_object() && (!*outcome || row.value("name", json()) == outcome))
      sum += {double(count_in(row, "launches")), double(count_in(row, "gpu_ns"))};
  return sum;
}

std::string percent_of(double part, double all) {
  return fmt::format("{:.0f}%", all > 0 ? 100 * part / all : 0);
}

std::string remedy_of(const json& client, const Obstacle& obstacle) {
  if (std::string_view(obstacle.name) != "nvidia_library") return obstacle.remedy;
  if (count_in(client, "splitting") != 0) return "";  // it is on
  const auto calls = client.find("operations");
  const bool none_seen = calls == client.end() || calls->empty();  // opened by path, or looked up by name
  return std::string(none_seen ? "--audit " : "") + obstacle.remedy;
}

void add_phrase(std::string& to, const char* between, const std::string& what) {
  if (!what.empty()) to += (to.empty() ? "" : between) + what;
}

}  // namespace

CutLaunches cut_launches(const json& client) {
  const Amount all = amount_of(client, ""), cut = amount_of(client, "sliced");
  if (all.launches == 0) return {};
  Amount possible = cut;
  possible += amount_of(client, "can_be_cut");
  CutLaunches out;
  out.share =
      fmt::format("cut: {} of {} launches, {} of {} on the GPU; can be cut: {}, {}",
                  percent_of(cut.launches, all.launches), short_count(all.launches),
                  percent_of(cut.gpu_ns, all.gpu_ns), short_duration(all.gpu_ns),
                  percent_of(possible.launches, all.launches), percent_of(possible.gpu_ns, all.gpu_ns));
  std::vector<std::pair<double, const Obstacle*>> in_the_way;
  for (const Obstacle& o : kObstacles)
    if (const double share = amount_of(client, o.name).share_of(all); share >= kLeastPart)
      in_the_way.emplace_back(share, &o);
  std::stable_sort(in_the_way.begin(), in_the_way.end(),
                   [](const auto& x, const auto& y) { return x.first > y.first; });
  for (const auto& [share, obstacle] : in_the_way) {
    add_phrase(out.obstacles, ", ", fmt::format("{:.0f}% {}", 100 * share, obstacle->text));
    add_phrase(out.remedies, "; ", remedy_of(client, *obstacle));
  }
  return out;
}

std::string shortens(std::string_view outcome) {
  if (outcome == "sliced") return "is cut: a slice of it, or its blocks, take that long";
  if (outcome == "can_be_cut") return "cut: it can be, and was expected to be short enough";
  for (const Obstacle& o : kObstacles)
    if (outcome == o.name)
      return fmt::format("{}: {}", o.text,
                         *o.way ? fmt::format("{}: {}; else {}", o.way, o.remedy, kConfine) : kConfine);
  return "";
}

std::string cutting_line(const json& client) {
  const CutLaunches launches = cut_launches(client);
  std::string line = launches.share;
  if (!launches.obstacles.empty()) line += "; in the way: " + launches.obstacles;
  if (!launches.remedies.empty()) line += "; helps: " + launches.remedies;
  return line;
}

}  // namespace tessera::cli
