#include "scheduler_daemon/config/config.h"

#include <algorithm>
#include <functional>
#include <map>
#include <sstream>

#include "base/toml.h"
#include "base/units.h"
#include "base/user_file.h"
#include "scheduler_daemon/engines/local_url.h"

namespace tessera::config {
namespace {

constexpr uint64_t kMostBytes = 1 << 20;
// A turn lasts at most twice its quantum of wall time, and all who wait are served within half the hold limit
// (policy/temporal.cc). The least quantum is served whatever the limit.
constexpr uint64_t kTurnsPerHold = 4, kShortestTurnUs = 1000;

struct Option {  // one row of options.def
  const char* section;
  const char* key;
  const char* kind;     // for people
  std::string initial;  // default as TOML
  std::string range;    // for people
  const char* description;
  // Stores the value, or says what is wrong with it (empty: fine).
  std::function<std::string(const toml::node&, Config*)> take;
};

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, at);) parts.push_back(part);
  return parts;
}

std::string take_number(const toml::node& node, uint64_t least, uint64_t most, uint64_t* out) {
  auto value = node.as_integer();
  if (value == nullptr || value->get() < int64_t(least) || value->get() > int64_t(most))
    return "must be a whole number from " + std::to_string(least) + " to " + std::to_string(most);
  *out = uint64_t(value->get());
  return "";
}

std::string take_text(const toml::node& node, const std::string& choices, std::string* out) {
  auto value = node.as_string();
  std::vector<std::string> allowed = split(choices, '|');
  bool fits = value != nullptr &&
              (allowed.empty() || std::find(allowed.begin(), allowed.end(), value->get()) != allowed.end());
  if (!fits) return allowed.empty() ? "must be a text in quotes" : "must be one of (in quotes) " + choices;
  *out = value->get();
  return "";
}

std::string take_cgroup(const toml::node& node, std::string* out) {
  std::string wrong = take_text(node, "", out);
  if (wrong.empty() && !out->starts_with('/'))
    wrong = "must start with /: what follows 0:: in /proc/PID/cgroup, * stands for anything but /";
  return wrong;
}

std::string take_local_url(const toml::node& node, std::string* out) {
  const std::string wrong = take_text(node, "", out);
  if (!wrong.empty()) return wrong;
  const auto parsed = engines::parse_local_url(*out);
  return parsed.ok() ? "" : parsed.error().text;
}

const std::vector<Option>& options() {
  static const std::vector<Option> rows = {
#define TS_NUMBER(section, key, initial, least, most, description) \
  {#section,                                                       \
   #key,                                                           \
   "number",                                                       \
   std::to_string(initial),                                        \
   #least " to " #most,                                            \
   description,                                                    \
   [](const toml::node& n, Config* c) { return take_number(n, least, most, &c->section##_##key); }},
#define TS_CHOICE(section, key, initial, choices, description)                                             \
  {#section, #key, "choice", "\"" initial "\"", choices, description, [](const toml::node& n, Config* c) { \
     return take_text(n, choices, &c->section##_##key);                                                    \
   }},
#define TS_TEXT(section, key, initial, description)                                                 \
  {#section, #key, "text", "\"" initial "\"", "", description, [](const toml::node& n, Config* c) { \
     return take_text(n, "", &c->section##_##key);                                                  \
   }},
#include "scheduler_daemon/config/options.def"
  };
  return rows;
}

size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      size_t substitute = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitute});
    }
  }
  return row.back();
}

std::string suggestion(const std::string& unknown, const std::vector<std::string>& known) {
  const std::string* best = nullptr;
  size_t least = unknown.size() / 2 + 1;
  for (const std::string& name : known)
    if (size_t d = edit_distance(unknown, name); d < least) least = d, best = &name;
  if (best != nullptr) return "; did you mean `" + *best + "`?";
  std::string all;
  for (const std::string& name : known) all += (all.empty() ? "" : ", ") + name;
  return "; known here: " + all;
}

class Reader {
 public:
  Reader(std::string file, Parsed* out) : file_(std::move(file)), out_(out) {}

  void read(const toml::table& root) {
    std::vector<std::string> sections;
    for (const Option& o : options())
      if (sections.empty() || sections.back() != o.section) sections.push_back(o.section);
    for (const auto& [name, node] : root) {
      std::string section(name.str());
      if (std::find(sections.begin(), sections.end(), section) == sections.end())
        fail(name.source(), "unknown section [" + section + "]" + suggestion(section, sections));
      else if (const toml::table* table = node.as_table())
        read_section(section, *table);
      else
        fail(name.source(), "`" + section + "` is a section: write [" + section + "] and its keys below");
    }
  }

  void fail(const toml::source_region& where, const std::string& what) {
    mistakes_[{where.begin.line, where.begin.column}] = what;
  }
  void fail(const base::TextPlace& where, const std::string& what) {
    mistakes_[{uint32_t(where.line), uint32_t(where.column)}] = what;
  }

  // In the order of the file: toml++ iterates its tables by name.
  void finish() {
    for (const auto& [where, what] : mistakes_)
      out_->errors.push_back(file_ + ":" + std::to_string(where.first) + ":" + std::to_string(where.second) +
                             ": " + what);
  }

 private:
  void read_section(const std::string& section, const toml::table& table) {
    std::vector<std::string> keys;
    for (const Option& o : options())
      if (section == o.section) keys.push_back(o.key);
    const std::string list = section == "priority" || section == "memory" ? "limit"
                             : section == "park"                          ? "engine"
                                                                          : "";
    if (!list.empty()) keys.push_back(list);
    for (const auto& [name, node] : table) {
      std::string key(name.str());
      if (!list.empty() && key == list) {
        read_list(section, list, node);
        continue;
      }
      auto row = std::find_if(options().begin(), options().end(),
                              [&](const Option& o) { return section == o.section && key == o.key; });
      if (row == options().end()) {
        fail(name.source(), "unknown key `" + key + "` in [" + section + "]" + suggestion(key, keys));
        continue;
      }
      std::string wrong = row->take(node, &out_->config);
      if (!wrong.empty() && section == "policy" && key == "name")
        wrong += "; policies of peers run in the simulator only: `tessera simulate --policy`";
      if (!wrong.empty()) fail(node.source(), "`" + section + "." + key + "` " + wrong);
    }
  }

  void read_list(const std::string& section, const std::string& list, const toml::node& node) {
    const toml::array* rows = node.as_array();
    const std::string heading = "[[" + section + "." + list + "]]";
    if (rows == nullptr || !rows->is_homogeneous<toml::table>())
      return fail(node.source(),
                  "`" + section + "." + list + "` is a list: write " + heading + " and its keys below");
    for (const toml::node& row : *rows) {
      uint64_t max = 0;
      if (section == "park") {
        read_engine(*row.as_table(), heading);
      } else if (section == "memory") {
        core::MemoryLimit limit;
        if (!read_limit(*row.as_table(), heading, "max_mib", 1, uint64_t(1) << 30, &limit, &max)) continue;
        limit.bytes = max * base::kMiB;
        out_->config.memory_limits.push_back(limit);
      } else {
        core::PriorityLimit limit;
        if (!read_limit(*row.as_table(), heading, "max", 0, ipc::abi::kMaxPriority, &limit, &max)) continue;
        limit.max_priority = uint32_t(max);
        out_->config.priority_limits.push_back(limit);
      }
    }
  }

  void read_engine(const toml::table& row, const std::string& heading) {
    core::EngineRule engine;
    bool wrong_any = false;
    for (const auto& [name, node] : row) {
      const std::string key(name.str());
      std::string wrong;
      if (key == "name") {
        wrong = take_text(node, "", &engine.name);
      } else if (key == "sleep") {
        wrong = take_local_url(node, &engine.sleep);
      } else if (key == "wake") {
        wrong = take_local_url(node, &engine.wake);
      } else if (key == "uid") {
        uint64_t uid = 0;
        wrong = take_number(node, 0, UINT32_MAX - 1, &uid);
        engine.uid = uid_t(uid);
      } else {
        fail(name.source(),
             "unknown key `" + key + "` in " + heading + suggestion(key, {"name", "uid", "sleep", "wake"}));
        continue;
      }
      if (!wrong.empty()) fail(node.source(), "`" + key + "` " + wrong);
      wrong_any = wrong_any || !wrong.empty();
    }
    if (wrong_any) return;
    if (engine.name.empty() || engine.sleep.empty() || engine.wake.empty())
      return fail(row.source(), heading + " needs `name`, `sleep` and `wake`");
    out_->config.park_engines.push_back(engine);
  }

  // Whom a limit names, and its bound. False: not both.
  template <class Limit>
  bool read_limit(const toml::table& row, const std::string& heading, const std::string& bound,
                  uint64_t least, uint64_t most, Limit* limit, uint64_t* max) {
    uint64_t id = 0;
    bool named = false, bounded = false;
    for (const auto& [name, node] : row) {
      std::string key(name.str());
      std::string wrong;
      if (key == "uid" || key == "gid" || key == "cgroup") {
        if (named)
          wrong = "only one of uid, gid and cgroup per " + heading;
        else if (key == "cgroup")
          wrong = take_cgroup(node, &limit->cgroup);
        else
          wrong = take_number(node, 0, UINT32_MAX - 1, &id);
        named = true;
        limit->by_gid = key == "gid";
      } else if (key == bound) {
        wrong = take_number(node, least, most, max);
        bounded = true;
      } else {
        fail(name.source(),
             "unknown key `" + key + "` in " + heading + suggestion(key, {"uid", "gid", "cgroup", bound}));
        continue;
      }
      if (!wrong.empty()) fail(node.source(), "`" + key + "` " + wrong);
    }
    limit->id = uint32_t(id);
    if (!named || !bounded)
      fail(row.source(), heading + " needs `uid`, `gid` or `cgroup`, and `" + bound + "`");
    return named && bounded;
  }

  std::string file_;
  Parsed* out_;
  std::map<std::pair<uint32_t, uint32_t>, std::string> mistakes_;  // by line and column
};

}  // namespace

Parsed parse_config(const std::string& text, const std::string& file_name, const Config& initial) {
  Parsed parsed;
  parsed.config = initial;
  Reader reader(file_name, &parsed);
  const auto odd = base::first_outside_ascii(text);
  if (odd) reader.fail(*odd, "only ASCII characters may be used, also in comments");
  if (!odd) {
    const toml::parse_result root = toml::parse(std::string_view(text), std::string_view(file_name));
    if (root)
      reader.read(root.table());
    else
      reader.fail(root.error().source(),
                  std::string(root.error().description()) + "; see https://toml.io for the syntax");
  }
  reader.finish();
  // Values that fit their own bounds but not each other.
  const Config& c = parsed.config;
  if (parsed.errors.empty() && c.policy_slice_us > c.policy_window_us)
    parsed.errors.push_back(file_name + ": policy.slice_us (" + std::to_string(c.policy_slice_us) +
                            ") is larger than policy.window_us (" + std::to_string(c.policy_window_us) +
                            "): a slice must fit into the window");
  const uint64_t longest_turn_us = std::max(c.policy_max_hold_ms * 1000 / kTurnsPerHold, kShortestTurnUs);
  if (parsed.errors.empty() && c.policy_quantum_us > longest_turn_us)
    parsed.errors.push_back(file_name + ": policy.quantum_us (" + std::to_string(c.policy_quantum_us) +
                            ") is longer than a quarter of policy.max_hold_ms (" +
                            std::to_string(c.policy_max_hold_ms) +
                            "): who waits for two turns would reach the hold limit");
  return parsed;
}

base::Result<Parsed> load_config(const std::string& path, const Config& initial) {
  const auto text = base::read_user_file(path, kMostBytes);
  if (!text)
    return base::error(text.error().code, "the configuration: " + text.error().text + "; check --config");
  return parse_config(*text, path, initial);
}

std::string needs_restart(const Config& running, const Config& wanted) {
  std::string names;
  const auto compare = [&](const std::string& section, const std::string& key, bool differs) {
    const bool at_once = (section != "daemon" && section != "mps") || key == "log_level" ||
                         key == "max_clients" || key == "on_daemon_loss" || key == "answer_within_ms";
    if (differs && !at_once) names += (names.empty() ? "" : ", ") + section + "." + key;
  };
#define TS_NUMBER(section, key, initial, least, most, description) \
  compare(#section, #key, running.section##_##key != wanted.section##_##key);
#define TS_CHOICE(section, key, initial, choices, description) \
  compare(#section, #key, running.section##_##key != wanted.section##_##key);
#define TS_TEXT(section, key, initial, description) \
  compare(#section, #key, running.section##_##key != wanted.section##_##key);
#include "scheduler_daemon/config/options.def"
  return names;
}

core::Settings settings_of(const Config& c) {
  core::Settings s;
  s.policy_name = c.policy_name;
#define TS_TIME(name, unit, initial, least, most, description) \
  s.parameters.name##_ns = base::unit(c.policy_##name##_##unit);
#define TS_PERCENT(name, initial, least, most, description) \
  s.parameters.name = double(c.policy_##name##_percent) / 100;
#define TS_SWITCH(name, initial, description) s.parameters.name = c.policy_##name == "on";
#include "scheduler_daemon/policy/parameters.def"
  s.watch_spin_us = uint32_t(c.policy_watch_spin_us);
  s.on_daemon_loss = c.daemon_on_daemon_loss == "hold" ? ipc::abi::kLossHold : ipc::abi::kLossOpen;
  s.answer_within_ms = uint32_t(c.daemon_answer_within_ms);
  s.gate = c.policy_gate == "device"   ? ipc::abi::kGateDevice
           : c.policy_gate == "thread" ? ipc::abi::kGateThread
                                       : ipc::abi::kGateAuto;
  s.max_clients = uint32_t(c.daemon_max_clients);
  s.default_max_priority = uint32_t(c.priority_default_max);
  s.priority_limits = c.priority_limits;
  s.memory_limits = c.memory_limits;
  s.park_idle_ns = base::ms(c.park_idle_s * 1000);
  s.park_for_priority = uint32_t(c.park_for_priority);
  s.park_by = c.park_by == "parker"   ? core::ParkBy::kParker
              : c.park_by == "client" ? core::ParkBy::kClient
                                      : core::ParkBy::kAuto;
  s.engines = c.park_engines;
  s.engine_answer_ns = base::ms(c.park_engine_answer_s * 1000);
  s.memory_ahead_bytes = c.memory_ahead_mib * base::kMiB;
  return s;
}

Checkpoints parse_checkpoints(const std::string& text, const std::string& file_name) {
  Checkpoints out;
  const auto fail = [&](const base::TextPlace& where, const std::string& what) {
    out.errors.push_back(file_name + ":" + std::to_string(where.line) + ":" + std::to_string(where.column) +
                         ": " + what);
  };
  if (const auto odd = base::first_outside_ascii(text)) {
    fail(*odd, "only ASCII characters may be used");
    return out;
  }
  const toml::parse_result root = toml::parse(std::string_view(text), std::string_view(file_name));
  if (!root) {
    const auto& at = root.error().source().begin;
    fail({at.line, at.column}, std::string(root.error().description()));
    return out;
  }
  const toml::array* rows = root["checkpoint"].as_array();
  for (size_t i = 0; rows != nullptr && i < rows->size(); ++i) {
    const toml::node& row = (*rows)[i];
    const base::TextPlace at{row.source().begin.line, row.source().begin.column};
    const toml::table* table = row.as_table();
    const auto gpu = table ? (*table)["gpu"].value<std::string>() : std::nullopt;
    const int64_t driver = table ? (*table)["driver"].value_or<int64_t>(0) : 0;
    const auto by = table ? (*table)["by"].value<std::string>() : std::nullopt;
    if (!gpu || gpu->empty() || driver <= 0 || driver > INT32_MAX || (by != "parker" && by != "client"))
      fail(at, "[[checkpoint]] needs `gpu`, `driver` (a number), and `by`: \"client\" or \"parker\"");
    else
      out.rules.push_back({*gpu, uint32_t(driver), by == "parker"});
  }
  return out;
}

Checkpoints load_checkpoints(const std::vector<std::string>& folders) {
  Checkpoints all;
  for (const std::string& folder : folders) {
    if (folder.empty() || folder == "off") continue;
    const std::string path = folder + "/checkpoints.toml";
    const auto text = base::read_user_file(path, kMostBytes);
    if (!text.ok()) {
      if (text.error().code != base::Code::kNotFound) all.errors.push_back(text.error().text);
      continue;
    }
    Checkpoints one = parse_checkpoints(*text, path);
    all.rules.insert(all.rules.end(), one.rules.begin(), one.rules.end());
    all.errors.insert(all.errors.end(), one.errors.begin(), one.errors.end());
  }
  return all;
}

std::string reference_markdown() {
  std::string out;
  const char* section = "";
  for (const Option& o : options()) {
    if (std::string(section) != o.section) {
      section = o.section;
      out += std::string(out.empty() ? "" : "\n") + "### [" + section +
             "]\n\n| key | default | values | meaning |\n|---|---|---|---|\n";
    }
    std::string range = o.range.empty() ? "text" : o.range;
    for (size_t at = 0; (at = range.find('|', at)) != std::string::npos; at += 2) range.replace(at, 1, "\\|");
    out += std::string("| `") + o.key + "` | `" + o.initial + "` | " + range + " | " + o.description + " |\n";
  }
  return out;
}

}  // namespace tessera::config
