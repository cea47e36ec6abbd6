#include "cli/run/client_environment.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <set>

#include "admission/limits.h"
#include "cli/run/duration.h"
#include "ipc/abi/messages.h"
#include "ipc/abi/requests.h"

namespace tessera::cli {
namespace {

constexpr unsigned kHighPriority = 5;

// The loader parts LD_PRELOAD at spaces, too.
bool lists(const std::string& list, const std::string& entry) {
  constexpr char kSeparators[] = ": ";
  for (size_t at = 0; at <= list.size();) {
    const size_t end = std::min(list.find_first_of(kSeparators, at), list.size());
    if (list.compare(at, end - at, entry) == 0) return true;
    at = end + 1;
  }
  return false;
}

// The entries of the second list behind the first, but for those that it has: a program may start `tessera run` itself.
std::string joined(const std::string& first, const std::string& second) {
  std::string out = first;
  for (size_t at = 0; at < second.size();) {
    const size_t end = std::min(second.find(':', at), second.size());
    const std::string entry = second.substr(at, end - at);
    if (out.empty() || !lists(out, entry)) out += (out.empty() ? "" : ":") + entry;
    at = end + 1;
  }
  return out;
}

// A pattern is the name of a kind of requests (ipc/abi/requests.h).
constexpr size_t kMostRanges = ipc::abi::kRequestRanges, kMostPatternBytes = ipc::abi::kRequestNameBytes - 1;

base::Status check_ranges(const RunOptions& options, unsigned priority) {
  const auto refused = [](const std::string& why) { return base::error(base::Code::kInvalid, why); };
  std::set<std::string> seen;
  for (const auto* patterns : {&options.request_ranges, &options.yield_ranges})
    for (const std::string& pattern : *patterns) {
      const std::string option = patterns == &options.yield_ranges ? "--yield-range" : "--request-range";
      if (priority == 0)
        return refused(option + " is for protected programs: give --priority high (or 1..7), too");
      if (pattern.empty() || pattern.size() > kMostPatternBytes || pattern.find('\n') != pattern.npos)
        return refused(option + " '" + pattern + "' is not one line of 1 to " +
                       std::to_string(kMostPatternBytes) + " bytes");
      if (!seen.insert(pattern).second) return refused(option + " '" + pattern + "' is there already");
    }
  if (seen.size() > kMostRanges)
    return refused("there are at most " + std::to_string(kMostRanges) +
                   " --request-range and --yield-range: let one pattern stand for several, as in 'step *'");
  return base::ok();
}

// Names of what a request's owner measures, and the kinds that they mean.
constexpr struct { const char *objective, *kind; } kObjectives[] = {{"ttft", "prefill"}, {"tpot", "decode"}};

struct KindSlo {
  std::string kind;
  uint64_t slo_ns;
};

// OBJECTIVE=DURATION
base::Result<KindSlo> parse_kind_slo(const std::string& text, const std::vector<std::string>& ranges) {
  const auto refused = [&](const std::string& why) {
    return base::error(base::Code::kInvalid, "--slo '" + text + "': " + why);
  };
  const size_t sign = text.rfind('=');
  std::string kind = text.substr(0, sign);
  bool known = std::ranges::count(ranges, kind) != 0;
  for (const auto& o : kObjectives) {
    known |= kind == o.objective || kind == o.kind;
    if (kind == o.objective) kind = o.kind;
  }
  if (!known)
    return refused("no requests are called '" + kind +
                   "': give ttft or tpot, or the pattern of a --request-range");
  const auto slo_ns = parse_duration_ns(text.substr(sign + 1));
  if (!slo_ns) return refused(slo_ns.error().text);
  if (*slo_ns == 0) return refused("no request takes no time");
  return KindSlo{kind, *slo_ns};
}

// --slo: a duration for the starts of the program's bursts, and others of kinds of requests, with commas between them.
base::Status add_slos(const RunOptions& options, std::vector<std::string>* out) {
  std::map<std::string, uint64_t> of_kinds;
  std::string of_bursts;
  for (size_t at = 0; at <= options.slo.size();) {
    const size_t end = std::min(options.slo.find(',', at), options.slo.size());
    const std::string part = options.slo.substr(at, end - at);
    at = end + 1;
    if (part.find('=') == part.npos && of_bursts.empty()) {
      const auto slo_ns = parse_slo_ns(part);
      if (!slo_ns) return slo_ns.error();
      of_bursts = "TESSERA_SLO_MS=" + std::to_string(*slo_ns / 1'000'000);
      continue;
    }
    if (part.find('=') == part.npos)
      return base::error(base::Code::kInvalid,
                         "--slo has two durations: name kinds of requests, as in ttft=200ms,tpot=30ms");
    const auto slo = parse_kind_slo(part, options.request_ranges);
    if (!slo) return slo.error();
    if (!of_kinds.emplace(slo->kind, slo->slo_ns).second)
      return base::error(base::Code::kInvalid, "--slo '" + part + "': '" + slo->kind + "' has one already");
  }
  if (!of_bursts.empty()) out->push_back(of_bursts);
  std::string lines;
  for (const auto& [kind, slo_ns] : of_kinds)
    lines += (lines.empty() ? "" : "\n") + kind + "=" + std::to_string(slo_ns);
  if (!lines.empty()) out->push_back("TESSERA_REQUEST_SLOS=" + lines);
  return base::ok();
}

// NVTX loads one tool: ours, which loads the one that was to be loaded (a profiler's).
void add_ranges(const RunOptions& options, const std::string& library, Lookup old, void* of,
                std::vector<std::string>* out) {
  const auto add_lines = [&](const char* variable, const std::vector<std::string>& patterns) {
    std::string lines;
    for (const std::string& pattern : patterns) lines += (lines.empty() ? "" : "\n") + pattern;
    if (!lines.empty()) out->push_back(variable + lines);
  };
  add_lines("TESSERA_REQUEST_RANGES=", options.request_ranges);
  add_lines("TESSERA_YIELD_RANGES=", options.yield_ranges);
  const std::string tool = old("NVTX_INJECTION64_PATH", of);
  out->push_back("NVTX_INJECTION64_PATH=" + library);
  if (!tool.empty() && tool != library) out->push_back("TESSERA_NVTX_TOOL=" + tool);
}

// GCC's AddressSanitizer ends a program whose runtime is not the first library, although it would work: nothing that we
// preload has functions that it intercepts. Said to every program, for those that it starts, too.
constexpr char kLinkOrder[] = "verify_asan_link_order";

void add_preload(const std::string& libraries, Lookup old, void* of, std::vector<std::string>* out) {
  // Appended: profilers and allocators preload too, and want to stay first.
  out->push_back("LD_PRELOAD=" + joined(old("LD_PRELOAD", of), libraries));
  const std::string sanitizer = old("ASAN_OPTIONS", of);
  if (sanitizer.find(kLinkOrder) == std::string::npos)
    out->push_back("ASAN_OPTIONS=" + joined(sanitizer, std::string(kLinkOrder) + "=0"));
}

// With an auditing library, glibc takes the thread-local storage of the libraries that a program starts with out of this
// reserve. Its default of 512 bytes ends programs with jemalloc (2.7 KiB) before main(). Each thread's stack is smaller by
// it, so not more than is ample.
constexpr char kTlsReserve[] = "glibc.rtld.optional_static_tls", kTlsReserveBytes[] = "16384";

void add_audit(const Layout& layout, Lookup old, void* of, std::vector<std::string>* out) {
  // In front of the user's: behind one without la_symbind64, glibc would not tell us of dlsym (docs/notes/audit.md).
  out->push_back("LD_AUDIT=" + joined(layout.audit, old("LD_AUDIT", of)));
  const std::string tunables = old("GLIBC_TUNABLES", of);
  if (tunables.find(kTlsReserve) == std::string::npos)
    out->push_back("GLIBC_TUNABLES=" + joined(tunables, std::string(kTlsReserve) + "=" + kTlsReserveBytes));
}

}  // namespace

std::string own_environment(const char* name, void*) {
  const char* value = getenv(name);
  return value ? value : "";
}

base::Result<unsigned> parse_weight(const std::string& text) {
  unsigned weight = 0;
  const char* end = text.data() + text.size();
  const auto [rest, failed] = std::from_chars(text.data(), end, weight);
  if (failed != std::errc() || rest != end || weight < 1 || weight > admission::kMostWeight)
    return base::error(base::Code::kInvalid,
                       "weight '" + text + "' is not a number from 1 to 10000 (100 is usual)");
  return weight;
}

base::Result<uint64_t> parse_slo_ns(const std::string& text) {
  auto slo_ns = parse_duration_ns(text);
  if (slo_ns && (*slo_ns == 0 || !admission::is_slo(*slo_ns)))
    return base::error(base::Code::kInvalid,
                       "slo '" + text + "' is not a whole number of milliseconds, e.g. 20ms");
  return slo_ns;
}

base::Result<unsigned> parse_priority(const std::string& text) {
  if (text == "high") return kHighPriority;
  if (text == "best-effort") return 0u;
  if (text.size() == 1 && text[0] >= '0' && text[0] <= '7') return unsigned(text[0] - '0');
  return base::error(
      base::Code::kInvalid,
      "priority '" + text + "' is none of: high, best-effort, 0..7 (0 = best-effort, 7 = highest)");
}

base::Result<std::vector<std::string>> client_environment(const RunOptions& options, const Layout& layout,
                                                          Lookup old, void* of) {
  auto priority = parse_priority(options.priority);
  if (!priority) return priority.error();
  if (options.gpu != "auto" && options.gpu != "soft")
    return base::error(base::Code::kInvalid, "--gpu '" + options.gpu + "' is none of: auto, soft");
  std::vector<std::string> out;
  if (!options.weight.empty()) {
    const auto weight = parse_weight(options.weight);
    if (!weight) return weight.error();
    out.push_back("TESSERA_WEIGHT=" + std::to_string(*weight));
  }
  if (!options.slo.empty()) {
    if (const auto added = add_slos(options, &out); !added) return added.error();
    if (*priority == 0)
      return base::error(base::Code::kInvalid,
                         "--slo is for protected programs: give --priority high (or 1..7), too");
  }
  if (const auto checked = check_ranges(options, *priority); !checked) return checked.error();
  if (!options.bit_stability.empty()) {
    if (options.bit_stability != "strict" && options.bit_stability != "relaxed")
      return base::error(base::Code::kInvalid,
                         "--bit-stability '" + options.bit_stability + "' is none of: strict, relaxed");
    out.push_back("TESSERA_BIT_STABILITY=" + options.bit_stability);
  }
  if (!options.gate.empty()) {
    if (options.gate != "auto" && options.gate != "device" && options.gate != "thread")
      return base::error(base::Code::kInvalid,
                         "--gate '" + options.gate + "' is none of: auto, device, thread");
    out.push_back("TESSERA_GATE=" + options.gate);
  }
  if (options.gang.size() >= ipc::abi::kMaxNameBytes)
    return base::error(base::Code::kInvalid, "--gang '" + options.gang + "' has more than " +
                                                 std::to_string(ipc::abi::kMaxNameBytes - 1) + " characters");
  if (!options.gang.empty()) out.push_back("TESSERA_GANG=" + options.gang);
  if (options.parkable) out.push_back("TESSERA_PARKABLE=1");
  if (!options.memory_wait.empty()) {
    const auto wait_ns = parse_duration_ns(options.memory_wait);
    if (!wait_ns) return wait_ns.error();
    out.push_back("TESSERA_MEMORY_WAIT_MS=" + std::to_string(*wait_ns / 1'000'000));
  }
  if (options.memory_limit_bytes != 0) {
    out.push_back("TESSERA_MEMORY_LIMIT=" + std::to_string(options.memory_limit_bytes));
    out.push_back("TESSERA_MEMORY_GROUP=" + std::to_string(options.memory_group));
  }
  if (options.split_operations) {
    if (!options.operations)
      return base::error(base::Code::kInvalid,
                         "--split-operations needs what --no-operations leaves out: give one of them");
    out.push_back("TESSERA_SPLIT_OPERATIONS=1");
  }
  if (options.allow_order_dependent) out.push_back("TESSERA_ALLOW_ORDER_DEPENDENT=1");
  if (options.gpu == "soft") {
    const std::string driver = layout.softgpu + "/libcuda.so.1";
    if (const std::string why = why_not_loadable(driver); !why.empty())
      return base::error(base::Code::kNotFound, "the software GPU cannot be used: " + why);
    out.push_back("TESSERA_DRIVER=" + driver);
    // Behind the user's folders. Without the library the driver must be found all the same, so it is
    // preloaded.
    out.push_back("LD_LIBRARY_PATH=" + joined(old("LD_LIBRARY_PATH", of), layout.softgpu));
    if (options.passthrough) add_preload(driver, old, of, &out);
  }
  if (options.passthrough) {
    out.push_back("TESSERA_DISABLE=1");
    return out;
  }
  std::string preload = layout.preload + ":" + layout.preload_alias;
  if (!options.newer_names.empty()) preload = options.newer_names + ":" + preload;
  if (options.operations && old("TESSERA_OPERATIONS", of) != "0" &&
      why_not_loadable(layout.preload_ops).empty())
    preload += ":" + layout.preload_ops;
  if (options.preload) add_preload(preload, old, of, &out);
  if (options.request_ranges.size() + options.yield_ranges.size() != 0 &&
      why_not_loadable(layout.ranges).empty())
    add_ranges(options, layout.ranges, old, of, &out);
  if (options.audit.value_or(false) && why_not_loadable(layout.audit).empty())
    add_audit(layout, old, of, &out);
  out.push_back("TESSERA_PRIORITY=" + std::to_string(*priority));
  std::string name = options.name;
  if (name.empty() && !options.command.empty())
    name = options.command[0].substr(options.command[0].rfind('/') + 1);
  out.push_back("TESSERA_NAME=" + name);
  out.push_back("TESSERA_RUN=1");
  if (!options.socket.empty())
    out.push_back("TESSERA_SOCKET=" + options.socket);  // else the library finds the default
  return out;
}

std::string cache_folder(Lookup old, void* of) {
  struct {
    const char *variable, *below;
  } const places[] = {{"TESSERA_CACHE_DIR", ""}, {"XDG_CACHE_HOME", "/tessera"}, {"HOME", "/.cache/tessera"}};
  for (const auto& place : places)
    if (const std::string base = old(place.variable, of); base.starts_with("/")) return base + place.below;
  return "";
}

}  // namespace tessera::cli
