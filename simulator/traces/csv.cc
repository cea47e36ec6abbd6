#include "simulator/traces/csv.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <map>

namespace tessera::simulator::traces {
namespace {

constexpr size_t kMostLine = 65'536;     // bytes
constexpr double kMostTimeUs = 1e12;     // eleven days
constexpr double kMostShape = 1u << 31;  // of a grid's or a block's side

// In the order of kColumns.
enum Column : uint8_t {
  kStep,
  kKind,
  kLaunch,
  kLaunchLength,
  kLaunchCall,
  kStart,
  kDuration,
  kStream,
  kGridX,
  kGridY,
  kGridZ,
  kBlockX,
  kBlockY,
  kBlockZ,
  kRegisters,
  kShared,
  kName,
  kColumnCount
};
constexpr std::array<const char*, kColumnCount> kColumns = {
    "step",        "kind",    "launch_ts_us", "launch_call_us", "launch_call", "start_us",
    "duration_us", "stream",  "grid_x",       "grid_y",         "grid_z",      "block_x",
    "block_y",     "block_z", "regs",         "smem_bytes",     "name"};

// Fields of one line; quotes as RFC 4180 has them, within a line.
void split(std::string_view line, std::vector<std::string>* fields) {
  fields->clear();
  fields->emplace_back();
  bool quoted = false;
  for (size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (quoted && c == '"' && i + 1 < line.size() && line[i + 1] == '"') {
      fields->back() += '"';
      ++i;
    } else if (c == '"') {
      quoted = !quoted;
    } else if (c == ',' && !quoted) {
      fields->emplace_back();
    } else {
      fields->back() += c;
    }
  }
}

class Reader {
 public:
  Reader(std::istream& text, const std::string& name)
      : text_(text), name_(name), names_(&out_.names), steps_(&out_.steps) {
    out_.file = name;
    out_.format = "CSV";
  }

  base::Result<Recording> read() {
    for (std::string line; next(&line);) {
      if (line.empty()) continue;
      if (line.starts_with("#")) {
        header(line);
        continue;
      }
      split(line, &fields_);
      if (at_[kKind] == kNone)
        columns();
      else if (out_.events.size() < kMostEvents)
        row();
      if (!problem_.empty())
        return base::error(base::Code::kInvalid, name_ + ":" + std::to_string(line_) + ": " + problem_);
    }
    if (!problem_.empty())
      return base::error(base::Code::kInvalid, name_ + ":" + std::to_string(line_) + ": " + problem_);
    if (at_[kKind] == kNone)
      return base::error(base::Code::kInvalid,
                         name_ + ": there is no line of column names (kind, start_us, ...)");
    if (out_.events.size() == kMostEvents)
      out_.remarks.push_back("only the first four million rows were read");
    return std::move(out_);
  }

 private:
  static constexpr size_t kNone = SIZE_MAX;

  bool next(std::string* line) {
    line->clear();
    ++line_;
    std::streambuf* bytes = text_.rdbuf();
    for (int c; (c = bytes->sbumpc()) != std::streambuf::traits_type::eof();) {
      if (c == '\n') {
        if (!line->empty() && line->back() == '\r') line->pop_back();
        return true;
      }
      line->push_back(char(c));
      if (line->size() <= kMostLine) continue;
      wrong("a line of more than 64 KiB: is this CSV?");
      return false;
    }
    return !line->empty();
  }

  // The first mistake is told.
  void wrong(const std::string& what) {
    if (problem_.empty()) problem_ = what;
  }

  void header(std::string_view line) {
    constexpr std::string_view kDevice = "# device: ";
    if (line.starts_with(kDevice)) out_.devices[0] = line.substr(kDevice.size());
  }

  void columns() {
    for (size_t i = 0; i < fields_.size(); ++i)
      for (size_t c = 0; c < kColumnCount; ++c)
        if (fields_[i] == kColumns[c]) at_[c] = i;
    for (const Column needed : {kKind, kLaunch, kStart, kDuration, kName})
      if (at_[needed] == kNone) wrong(std::string("there is no column `") + kColumns[needed] + "`");
  }

  std::string_view field(Column column) const {
    return at_[column] < fields_.size() ? std::string_view(fields_[at_[column]]) : std::string_view();
  }
  // Empty: `otherwise`.
  double number(Column column, double least, double most, double otherwise) {
    const std::string_view text = field(column);
    if (text.empty()) return otherwise;
    double value = 0;
    const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (code == std::errc() && end == text.data() + text.size() && value >= least && value <= most)
      return value;
    char range[64];
    std::snprintf(range, sizeof range, " from %g to %g", least, most);
    wrong(std::string("`") + kColumns[column] + "` must be a number" + range);
    return otherwise;
  }
  int64_t time_ns(Column column, int64_t otherwise) {
    const double us = number(column, -kMostTimeUs, kMostTimeUs, NAN);
    return std::isnan(us) ? otherwise : int64_t(std::llround(us * 1000));
  }

  void row() {
    Event e;
    if (field(kKind) == "host_sync") e.device = kAnyDevice;
    const std::string_view kind = field(kKind);
    if (kind == "kernel")
      e.kind = EventKind::kKernel;
    else if (kind == "memcpy")
      e.kind = EventKind::kCopy;
    else if (kind == "memset")
      e.kind = EventKind::kSet;
    else if (kind == "host_sync")
      e.kind = EventKind::kWait;
    else
      wrong("`kind` must be kernel, memcpy, memset or host_sync");
    e.call_ns = time_ns(kLaunch, kNotRecorded);
    e.call_length_ns = std::max<int64_t>(0, time_ns(kLaunchLength, 0));
    e.start_ns = time_ns(kStart, kNotRecorded);
    e.length_ns = std::max<int64_t>(0, time_ns(kDuration, 0));
    e.stream = uint64_t(number(kStream, 0, 1e15, 0));
    const double blocks = number(kGridX, 0, kMostShape, 0) * number(kGridY, 0, kMostShape, 1) *
                          number(kGridZ, 0, kMostShape, 1);
    const double threads = number(kBlockX, 0, kMostShape, 0) * number(kBlockY, 0, kMostShape, 1) *
                           number(kBlockZ, 0, kMostShape, 1);
    e.blocks = uint64_t(std::min(blocks, kMostShape));
    e.threads_per_block = uint32_t(std::min(threads, 1024.0));
    e.registers = uint32_t(number(kRegisters, 0, 1024, 0));
    e.shared_bytes = uint64_t(number(kShared, 0, 1e9, 0));
    e.name = names_.index(field(kName));
    if (!field(kStep).empty()) e.step = int32_t(steps_.index(field(kStep)));
    if (e.on_gpu() && e.start_ns == kNotRecorded) wrong("an operation of the GPU needs `start_us`");
    if (!e.on_gpu() && e.call_ns == kNotRecorded) wrong("a wait needs `launch_ts_us`");
    e.may_block = e.kind == EventKind::kCopy && copy_may_block(field(kName), field(kLaunchCall));
    if (call_is_of_graph(field(kLaunchCall)) && e.call_ns != kNotRecorded)
      e.graph = graphs_.try_emplace(e.call_ns, graphs_.size() + 1).first->second;
    if (problem_.empty()) out_.events.push_back(e);
  }

  std::istream& text_;
  const std::string& name_;
  Recording out_;
  Names names_, steps_;
  std::vector<std::string> fields_;
  std::array<size_t, kColumnCount> at_ = [] {
    std::array<size_t, kColumnCount> none{};
    none.fill(kNone);
    return none;
  }();
  std::map<int64_t, uint64_t> graphs_;  // numbers by the time of the call
  size_t line_ = 0;
  std::string problem_;
};

}  // namespace

base::Result<Recording> read_csv(std::istream& text, const std::string& name) {
  return Reader(text, name).read();
}

}  // namespace tessera::simulator::traces
