#include "cli/look/client_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <span>
#include <tuple>

#include "base/printable.h"
#include "cli/look/cut_launches.h"
#include "cli/look/request_table.h"

namespace tessera::cli {
namespace {

using nlohmann::json;
constexpr size_t kTopOperations = 8;  // lines of `tessera top`

// One client at both looks; one that came in between, or is another one under an old number, did nothing before.
struct Pair {
  const json& now;
  const json& before;
  double seconds;

  double grown(const char* key) const {
    const uint64_t was = count_in(before, key), is = count_in(now, key);
    return is > was ? double(is - was) : 0;
  }
  std::string rate(const char* key) const { return short_count(grown(key) / seconds); }
  std::string share(double ns) const { return fmt::format("{:.0f}%", std::min(ns / 1e7 / seconds, 100.0)); }
  double gpu_ns() const { return grown(count_in(now, "priority") != 0 ? "busy_ns" : "completed_ns"); }
};

struct Column {
  const char* heading;
  int width;  // with the space before the next one
  bool left;
  std::function<std::string(const Pair&)> cell;
};

Column left(const char* heading, int width, std::function<std::string(const Pair&)> cell) {
  return {heading, width, true, std::move(cell)};
}
Column right(const char* heading, int width, std::function<std::string(const Pair&)> cell) {
  return {heading, width, false, std::move(cell)};
}
Column sum(const char* heading, int width, const char* key) {
  return right(heading, width, [key](const Pair& c) { return short_count(double(count_in(c.now, key))); });
}
Column rate(const char* heading, int width, const char* key) {
  return right(heading, width, [key](const Pair& c) { return c.rate(key); });
}

std::string pid(const Pair& c) {
  return std::to_string(count_in(c.now, "pid"));
}
std::string name(const Pair& c) {
  return text_in(c.now, "name");
}
std::string priority(const Pair& c) {
  return std::to_string(count_in(c.now, "priority"));
}
std::string state(const Pair& c) {
  return text_in(c.now, "state");
}
std::string gpu(const Pair& c) {
  return c.share(c.gpu_ns());
}

std::string line(std::span<const Column> columns, const std::function<std::string(const Column&)>& cell) {
  std::string out;
  for (const Column& column : columns) {
    const std::string content = cell(column).substr(0, size_t(column.width) - 1);
    out += column.left ? fmt::format("{:<{}}", content, column.width)
                       : fmt::format("{:>{}} ", content, column.width - 1);
  }
  out.erase(out.find_last_not_of(' ') + 1);
  return out + '\n';
}

std::string table(std::span<const Column> columns, const TwoLooks& looks) {
  std::string out = line(columns, [](const Column& column) { return column.heading; });
  const json before = list_in(looks.before, "clients"), nothing = json::object();
  for (const json& client : list_in(looks.now, "clients")) {
    const auto was = std::find_if(before.begin(), before.end(),
                                  [&](const json& c) { return count_in(c, "id") == count_in(client, "id"); });
    // Without an earlier look nothing is known to have grown.
    const json& earlier = was != before.end() ? *was : looks.before.is_null() ? client : nothing;
    const Pair pair{client, earlier, std::max(looks.seconds, 1e-6)};
    out += line(columns, [&](const Column& column) { return column.cell(pair); });
  }
  return out;
}

}  // namespace

std::string wrapped(std::string rest) {
  constexpr size_t kColumns = kTableColumns;
  std::string out;
  while (rest.size() > kColumns) {
    const size_t space = rest.rfind(' ', kColumns);
    const size_t at = space == std::string::npos || space < 8 ? kColumns : space;
    out += rest.substr(0, at) + '\n';
    rest = "    " + rest.substr(at + (at == space ? 1 : 0));
  }
  return out + rest + '\n';
}

namespace {

std::string short_bytes(uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = double(bytes);
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

// Joins what `line` says of each client; clients with "" have none.
std::string line_of_each(const json& now, std::string (*line)(const json&)) {
  std::string out;
  for (const json& c : list_in(now, "clients"))
    if (const std::string text = line(c); !text.empty())
      out += wrapped(fmt::format("{} {}: {}", count_in(c, "pid"), text_in(c, "name").substr(0, 15), text));
  return out;
}

}  // namespace

std::string text_in(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? base::printable(found->get<std::string>()) : "";
}

json list_in(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_array() ? *found : json::array();
}

uint64_t count_in(const json& client, const char* key) {
  const auto found = client.find(key);
  if (found == client.end() || !found->is_number_integer()) return 0;
  return found->is_number_unsigned() || found->get<int64_t>() > 0 ? found->get<uint64_t>() : 0;
}

std::string ps_table(const TwoLooks& looks) {
  const Column columns[] = {
      left("PID", 9, pid),
      left("NAME", 18, name),
      left("PRIO", 5, priority),
      left("STATE", 9, state),
      right("GPU", 6, gpu),
      sum("LAUNCHES", 9, "launches"),
      sum("SLICES", 8, "slices"),
      sum("HOLDS", 7, "holds"),
      right("HELD", 9, [](const Pair& c) { return short_duration(double(count_in(c.now, "held_ns"))); }),
  };
  return table(columns, looks);
}

std::string ps_reserves(const json& now) {
  std::string out;
  for (const json& c : list_in(now, "clients")) {
    const uint64_t reserved = count_in(c, "reserved_sms");
    const uint64_t launches = count_in(c, "confined_launches");
    if (reserved == 0 || launches == 0) continue;  // nothing of it is of the kind that needs it
    uint64_t sms = 0;
    for (const json& g : list_in(now, "gpus"))
      if (text_in(g, "uuid") == text_in(c, "gpu")) sms = count_in(g, "sm_count");
    out += fmt::format("{} {}: reserve: {} of {} SMs by green contexts, {}", count_in(c, "pid"),
                       text_in(c, "name").substr(0, 15), reserved, sms,
                       short_count(double(launches)) + " launches")
               .substr(0, kTableColumns) +
           '\n';
  }
  return out;
}

std::string ps_beside(const json& now) {
  std::string out;
  for (const json& c : list_in(now, "clients")) {
    std::string classes, launches;
    const auto append = [](std::string& to, const std::string& what) {
      to += (to.empty() ? "" : ", ") + what;
    };
    for (const json& name : list_in(c, "during_bursts"))
      if (name.is_string()) append(classes, base::printable(name.get<std::string>()));
    for (const char* name : {"compute", "memory", "latency", "unknown"})
      if (const uint64_t n = count_in(c, (std::string("during_bursts_") + name).c_str()))
        append(launches, short_count(double(n)) + ' ' + name);
    if (launches.empty()) continue;
    out +=
        wrapped(fmt::format("{} {}: during bursts: {} launches so far; now of class: {}", count_in(c, "pid"),
                            text_in(c, "name").substr(0, 15), launches, classes.empty() ? "none" : classes));
  }
  return out;
}

std::string ps_starved(const json& now) {
  std::string out;
  for (const json& c : list_in(now, "clients")) {
    const auto found = c.find("starved");
    if (found == c.end() || !found->is_object()) continue;
    const auto share = found->find("share");
    out += wrapped(fmt::format("{} {}: starves, {:.1f}% of the GPU: {}", count_in(c, "pid"),
                               text_in(c, "name").substr(0, 15),
                               share != found->end() && share->is_number() ? 100 * share->get<double>() : 0,
                               text_in(*found, "why")));
    out += wrapped("  helps: " + text_in(*found, "remedy"));
  }
  return out;
}

std::string gang_line(const json& client) {
  const auto gang = client.find("gang");
  if (gang == client.end() || !gang->is_object()) return "";
  const std::string at = text_in(*gang, "held_at");
  std::string out = fmt::format("{} of {} in gang {}, {}", count_in(*gang, "member"),
                                count_in(*gang, "members"), text_in(*gang, "name"), text_in(client, "state"));
  std::string gpus;
  for (const json& gpu : list_in(client, "further_gpus"))
    if (gpu.is_string()) gpus += ", " + base::printable(gpu.get<std::string>());
  if (!gpus.empty()) out += " on " + text_in(client, "gpu") + gpus;
  return at.empty() ? out : out + fmt::format(": all are held by {}: {}", at, text_in(*gang, "why"));
}

std::string ps_gangs(const json& now) {
  return line_of_each(now, gang_line);
}

std::string ps_unmanaged(const json& now) {
  std::string out;
  for (const json& c : list_in(now, "clients"))
    if (const uint64_t n = count_in(c, "unmanaged_launches"))
      out += (out.empty() ? "" : ", ") +
             fmt::format("{} {}: {}", count_in(c, "pid"), text_in(c, "name").substr(0, 15), n);
  return out.empty() ? out : wrapped("launches before they were managed: " + out);
}

std::string ps_cutting(const json& now) {
  return line_of_each(now, cutting_line);
}

std::string ps_memory(const json& now) {
  std::string out;
  for (const json& c : list_in(now, "clients")) {
    const json rows = list_in(c, "memory");
    for (const json& row : rows) {
      std::string line = fmt::format("{} {}: memory {}", count_in(c, "pid"), text_in(c, "name").substr(0, 15),
                                     short_bytes(count_in(row, "used")));
      if (const uint64_t limit = count_in(row, "limit"))
        line += " of " + short_bytes(limit) +
                (row.value("limit_by_kernel", false) ? " (also the kernel's limit)" : "");
      if (const uint64_t reserved = count_in(row, "reserved")) line += ", reserved " + short_bytes(reserved);
      if (rows.size() > 1) line += " on " + text_in(row, "gpu");
      line += ", peak " + short_bytes(count_in(row, "peak"));
      const auto also = [&](const char* key, const char* what) {
        if (const uint64_t n = count_in(row, key)) line += fmt::format(", {} {}", what, short_bytes(n));
      };
      also("managed", "managed");
      also("imported", "imported");
      also("shared", "shared");
      also("residual", "besides");
      if (const auto residual = row.find("residual"); residual != row.end() && residual->is_null())
        line += ", besides unknown";
      if (const uint64_t n = count_in(row, "refusals")) line += fmt::format(", refused {} times", n);
      if (const uint64_t n = count_in(row, "waits"))
        line += fmt::format(", waits for {} more since {:.0f} s", short_bytes(n),
                            double(count_in(row, "waits_for_ns")) / 1e9);
      out += wrapped(line);
    }
  }
  return out;
}

std::string ps_gates(const json& now) {
  std::string out;
  std::map<std::string, std::string> in_thread;  // by reason: who
  for (const json& c : list_in(now, "clients")) {
    const uint64_t boundaries = count_in(c, "gate_boundaries");
    const std::string gate = text_in(c, "gate"),
                      who = fmt::format("{} {}", count_in(c, "pid"), text_in(c, "name").substr(0, 15));
    if (gate.empty()) continue;
    if (boundaries == 0 && gate != "device") {
      std::string& others = in_thread[gate];
      others += (others.empty() ? "" : ", ") + who;
      continue;
    }
    std::string line = who + ": waits ";
    line += gate == "device"
                ? fmt::format("on the device, quanta of {} us", count_in(c, "gate_quantum_ns") / 1000)
                : "in its " + gate;
    line += fmt::format("; {} boundaries", short_count(double(boundaries)));
    const auto also = [&](const char* counter, const char* what) {
      if (const uint64_t n = count_in(c, counter)) line += ", " + short_count(double(n)) + what;
    };
    also("gate_run_ahead_waits", " waits far ahead");
    also("gate_openings", " openings by the hold limit");
    also("gate_thread_asks", " launches that asked in their thread");
    out += wrapped(line);
  }
  for (const auto& [gate, who] : in_thread) out += wrapped(who + ": waits in its " + gate);
  return out.empty() ? out : out + wrapped(kGatePrices);
}

namespace {

double real(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? std::max(found->get<double>(), 0.0) : 0;
}

struct OperationLine {  // grown between the looks
  uint64_t pid, calls;
  std::string name, type, bound;
  double flop, bytes, gpu_ns;
};

// An operation of a client at the earlier look; an empty object if it was not there yet.
json earlier(const json& operations, const json& operation) {
  for (const json& o : operations)
    if (text_in(o, "name") == text_in(operation, "name") && text_in(o, "type") == text_in(operation, "type"))
      return o;
  return json::object();
}

std::vector<OperationLine> operation_lines(const TwoLooks& looks) {
  std::vector<OperationLine> lines;
  const json before = list_in(looks.before, "clients");
  for (const json& client : list_in(looks.now, "clients")) {
    const auto was = std::find_if(before.begin(), before.end(),
                                  [&](const json& c) { return count_in(c, "id") == count_in(client, "id"); });
    const json then = was != before.end() ? list_in(*was, "operations") : json::array();
    for (const json& o : list_in(client, "operations")) {
      // Without an earlier look nothing is known to have grown.
      const json old = looks.before.is_null() ? o : earlier(then, o);
      const auto grown = [&](const char* key) { return std::max(real(o, key) - real(old, key), 0.0); };
      lines.push_back({count_in(client, "pid"), count_in(o, "calls"), text_in(o, "name"), text_in(o, "type"),
                       text_in(o, "class"), grown("flop"), grown("bytes"), grown("gpu_ns")});
    }
  }
  std::stable_sort(lines.begin(), lines.end(), [](const OperationLine& x, const OperationLine& y) {
    return std::tuple(x.gpu_ns, x.flop, x.calls) > std::tuple(y.gpu_ns, y.flop, y.calls);
  });
  return lines;
}

// Each call that could go out in pieces is counted in one of these, or in split_calls.
struct WholeCalls {
  const char *counter, *why;
};
constexpr WholeCalls kWholeCalls[] = {
    {"kept_short", "shorter than two slices"},     {"kept_free", "alone on the GPU or captured"},
    {"kept_unproven", "not compared yet"},         {"kept_unequal", "other bits in pieces"},
    {"kept_form", "of a form that has no pieces"},
};

std::string what_was_split(const json& client) {
  const auto count = [&](const char* key) { return count_in(client, key); };
  const uint64_t split = count("split_calls");
  uint64_t seen = split;
  std::string whole;
  for (const WholeCalls& row : kWholeCalls) {
    const uint64_t n = count(row.counter);
    if (n != 0) whole += fmt::format("{}{} {}", whole.empty() ? "" : ", ", short_count(double(n)), row.why);
    seen = n > UINT64_MAX - seen ? UINT64_MAX : seen + n;
  }
  if (seen == 0)
    return list_in(client, "operations").empty()
               ? "no library call seen; --audit shows those of libraries opened by path"
               : "no product or convolution among its library calls";
  std::string out = short_count(double(seen)) + " products and convolutions seen, ";
  out += split ? fmt::format("{} split in {}", short_count(double(split)),
                             short_count(double(count("split_pieces"))))
               : "none split";
  return whole.empty() ? out : out + "; whole: " + whole;
}

}  // namespace

std::string ps_splits(const json& now) {
  std::string out;
  for (const json& c : list_in(now, "clients")) {
    if (count_in(c, "splitting") == 0 || count_in(c, "priority") != 0) continue;
    out += wrapped(fmt::format("{} {}: splits operations: {}", count_in(c, "pid"),
                               text_in(c, "name").substr(0, 15), what_was_split(c)));
  }
  return out;
}

std::string ps_minimum(const json& now) {
  std::string out;
  const auto daemon = now.find("daemon");
  const uint64_t percent =
      daemon != now.end() && daemon->is_object() ? count_in(*daemon, "min_share_percent") : 0;
  if (percent == 0) return out;
  for (const json& c : list_in(now, "clients")) {
    const uint64_t beside = count_in(c, "minimum_share_slowdown_permille");
    if (beside == 0) continue;
    out += wrapped(
        fmt::format("{} {}: minimum share of {}%: bursts beside it take {:.2f} of their time, others {:.2f}",
                    count_in(c, "pid"), text_in(c, "name").substr(0, 15), percent, double(beside) / 1000,
                    double(count_in(c, "other_slowdown_permille")) / 1000));
  }
  return out;
}

std::string operation_table(const TwoLooks& looks, size_t most) {
  static constexpr char kLine[] = "{:<8} {:<26} {:<6} {:>7} {:>7} {:>7} {:>5} {}\n";
  const std::vector<OperationLine> lines = operation_lines(looks);
  if (lines.empty()) return "";
  const double seconds = std::max(looks.seconds, 1e-6);
  std::string out =
      fmt::format(kLine, "PID", "OPERATION", "TYPE", "CALLS", "FLOP/s", "BYTE/s", "GPU", "CLASS");
  for (size_t i = 0; i < std::min(most, lines.size()); i++) {
    const OperationLine& l = lines[i];
    out += fmt::format(
        kLine, std::to_string(l.pid).substr(0, 8), l.name.substr(0, 26), l.type.substr(0, 6),
        short_count(double(l.calls)), short_count(l.flop / seconds), short_count(l.bytes / seconds),
        fmt::format("{:.0f}%", std::min(l.gpu_ns / 1e7 / seconds, 100.0)), l.bound.substr(0, 7));
  }
  if (lines.size() > most) out += fmt::format("... and {} more\n", lines.size() - most);
  return out;
}

std::string top_table(const TwoLooks& looks) {
  const Column columns[] = {
      left("PID", 9, pid),
      left("NAME", 15, name),
      left("PRIO", 5, priority),
      left("STATE", 8, state),
      right("GPU", 6, gpu),
      right("HELD", 6, [](const Pair& c) { return c.share(c.grown("held_ns")); }),
      rate("LAUNCH/s", 9, "launches"),
      rate("SLICE/s", 8, "slices"),
      rate("BURST/s", 8, "bursts_recorded"),
      right("SLOWER", 7,
            [](const Pair& c) {
              const uint64_t slowdown = count_in(c.now, "slowdown_permille");
              return slowdown == 0 ? "-" : fmt::format("{:.2f}", double(slowdown) / 1000);
            }),
  };
  std::string out;
  for (const json& g : list_in(looks.now, "gpus"))
    out += fmt::format("{}: {}, {}, {} clients", text_in(g, "uuid"), text_in(g, "policy"),
                       g.value("mps", false) ? "leases overlap" : "turns", count_in(g, "clients"))
               .substr(0, kTableColumns) +
           '\n';
  return out + table(columns, looks) + ps_gangs(looks.now) +
         request_table(looks.now, looks.before, kTopOperations) + operation_table(looks, kTopOperations);
}

std::string short_count(double n) {
  constexpr char kSuffixes[] = {'k', 'M', 'G', 'T'};
  if (n < 999.5) return fmt::format("{:.0f}", n);
  for (const char suffix : kSuffixes) {
    n /= 1000;
    if (n < 9.995) return fmt::format("{:.2f}{}", n, suffix);
    if (n < 99.95) return fmt::format("{:.1f}{}", n, suffix);
    if (n < 999.5) return fmt::format("{:.0f}{}", n, suffix);
  }
  return fmt::format("{:.0e}", n * 1e12);
}

std::string short_duration(double ns) {
  struct Unit {
    double ns;
    const char* name;
  };
  constexpr Unit kUnits[] = {{1e3, "us"}, {1e6, "ms"}, {1e9, "s"}, {60e9, "min"}, {3600e9, "h"}};
  if (ns < 500) return "0";
  const Unit* unit = kUnits;
  // 0.95: what would be rounded up to a thousand of the smaller one.
  for (const Unit& larger : kUnits)
    if (ns >= 0.9995 * larger.ns) unit = &larger;
  const double n = ns / unit->ns;
  return fmt::format("{:.{}f} {}", n, n < 9.95 ? 1 : 0, unit->name);
}

}  // namespace tessera::cli
