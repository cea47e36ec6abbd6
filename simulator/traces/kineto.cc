#include "simulator/traces/kineto.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <unordered_map>

namespace tessera::simulator::traces {
namespace {

constexpr size_t kMostDepth = 256;
constexpr size_t kMostRanges = 1'000'000;
constexpr size_t kMostNames = 1'000'000;
constexpr double kMostTimeUs = 4e15;  // since 1970: sums of two still fit in 64 bits
constexpr int64_t kMostLengthNs = 1'000'000'000'000'000;

// Mends what profilers write that is no JSON: numbers that are none (nan, inf, Infinity) become 0, bytes
// outside ASCII become '?': names of kernels have none, paths of users may have any. The parser keeps what it reads until
// a token ends, so that of white space, numbers and texts only the beginning is handed on: compressed, a gigabyte of
// blanks is a megabyte.
class Mended : public std::streambuf {
 public:
  explicit Mended(std::streambuf* from) : from_(from) {}

 protected:
  int_type underflow() override {
    out_.clear();
    while (out_.size() < kBlock) {
      const int c = from_->sbumpc();
      if (c == traits_type::eof()) {
        end_word();
        break;
      }
      take(char(c));
    }
    if (out_.empty()) return traits_type::eof();
    setg(out_.data(), out_.data(), out_.data() + out_.size());
    return traits_type::to_int_type(out_[0]);
  }

 private:
  static constexpr size_t kBlock = 1 << 16;
  static constexpr size_t kLongestWord = 16;
  static constexpr size_t kLongestToken = 1 << 16;  // 64 KiB; names are kept to kMostNameLength

  void take(char c) {
    const auto byte = static_cast<unsigned char>(c);
    if (in_text_) {
      in_text_ = escaped_ || c != '"';
      if (!escaped_ && c == '\\') since_escape_ = 0;
      // Not within an escape; the longest has five characters behind its backslash.
      if (++length_ > kLongestToken && (since_escape_ == 0 || since_escape_ > 5)) is_cut_ = true;
      if (since_escape_ <= 5) since_escape_++;
      escaped_ = !escaped_ && c == '\\';
      if (!is_cut_ || !in_text_) out_ += byte >= 0x80 ? '?' : byte < 0x20 ? ' ' : c;
      if (!in_text_) length_ = 0, is_cut_ = false;
      return;
    }
    const bool in_word = std::isalpha(byte) != 0 && !in_number_;
    if (in_word && word_.size() < kLongestWord) {
      word_ += c;
      return;
    }
    end_word();
    const bool is_blank = std::isspace(byte) != 0, was_number = in_number_;
    in_number_ =
        std::isdigit(byte) != 0 || (in_number_ && (c == '.' || c == 'e' || c == 'E' || c == '+' || c == '-'));
    in_text_ = c == '"';
    length_ = (is_blank && was_blank_) || (in_number_ && was_number) ? length_ + 1 : 0;
    was_blank_ = is_blank;
    if (length_ < kLongestToken) out_ += c;
  }
  void end_word() {
    if (word_ == "NaN" || word_ == "nan" || word_ == "inf" || word_ == "Infinity" || word_ == "ind")
      out_ += '0';
    else
      out_ += word_;
    word_.clear();
  }

  std::streambuf* from_;
  std::string out_, word_;
  bool in_text_ = false, escaped_ = false, in_number_ = false, was_blank_ = false;
  bool is_cut_ = false;          // the rest of this text is left out
  size_t length_ = 0;            // of the text, the number or the white space, until now
  unsigned since_escape_ = 100;  // characters since the last backslash of this text
};

enum class Kind : uint8_t { kOther, kKernel, kCopy, kSet, kCall };
struct Category {
  const char* name;
  Kind kind;
};
constexpr Category kCategories[] = {
    {"kernel", Kind::kKernel},     {"Kernel", Kind::kKernel},  {"gpu_memcpy", Kind::kCopy},
    {"Memcpy", Kind::kCopy},       {"gpu_memset", Kind::kSet}, {"Memset", Kind::kSet},
    {"cuda_runtime", Kind::kCall}, {"Runtime", Kind::kCall},   {"cuda_driver", Kind::kCall},
    {"hip_runtime", Kind::kCall},
};

struct Call {
  int64_t start_ns = 0, length_ns = 0;
  uint32_t name = 0;
};

// Reads nanoseconds from the digits: a double has too few for microseconds since 1970 with fractions.
int64_t ns_of(const std::string& digits, double us) {
  const size_t point = digits.find('.');
  int64_t whole = 0;
  const char* end = digits.data() + (point == std::string::npos ? digits.size() : point);
  const auto [stop, code] = std::from_chars(digits.data(), end, whole);
  if (code != std::errc() || stop != end || point == std::string::npos || digits.size() > 40 || whole < 0 ||
      digits.find_first_of("eE") != std::string::npos)
    return int64_t(std::llround(us * 1000));
  int64_t fraction = 0;
  for (size_t i = 1; i <= 3; ++i)
    fraction = fraction * 10 + (point + i < digits.size() ? digits[point + i] - '0' : 0);
  return whole * 1000 + fraction;
}

class Handler : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit Handler(const std::string& name) : names_(&out_.names) {
    out_.file = name;
    out_.format = "PyTorch profiler";
  }

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t v) override { return value(double(v), v); }
  bool number_unsigned(number_unsigned_t v) override {
    return value(double(v), int64_t(std::min<uint64_t>(v, INT64_MAX)));
  }
  bool number_float(number_float_t v, const string_t& digits) override {
    if (!stack_.empty() && stack_.back() == Context::kEvent)
      time(v >= 0 && v <= kMostTimeUs ? ns_of(digits, v) : -1);
    else
      value(v, std::abs(v) < 9e18 ? int64_t(v) : 0);
    return true;
  }
  bool string(string_t& v) override {
    if (stack_.empty()) return true;
    is_tessera_ |= key_ == "format" && v.starts_with("tessera trace");
    if (stack_.back() == Context::kEvent) {
      if (key_ == "ph") phase_ = v;
      if (key_ == "cat") category_ = v;
      if (key_ == "name") name_ = v.substr(0, kMostNameLength);
    }
    if (stack_.back() == Context::kDevice && key_ == "name") device_name_ = v.substr(0, kMostNameLength);
    return true;
  }
  bool binary(binary_t&) override { return true; }
  bool key(string_t& v) override {
    key_ = v.size() <= 64 ? v : "";
    return true;
  }
  bool start_object(std::size_t) override {
    const Context in = stack_.empty() ? Context::kOther : stack_.back();
    Context next = Context::kOther;
    if (stack_.empty()) next = Context::kRoot;
    if (in == Context::kEvents) {
      next = Context::kEvent;
      event_ = {};
      has_time_ = false;
      correlation_ = -1;
      grid_ = block_ = 1;
      has_grid_ = has_block_ = false;
      phase_.clear(), category_.clear(), name_.clear();
    }
    if (in == Context::kEvent && key_ == "args") next = Context::kArgs;
    if (in == Context::kDevices) {
      next = Context::kDevice;
      device_id_ = 0;
      device_name_.clear();
    }
    return push(next);
  }
  bool end_object() override {
    if (stack_.back() == Context::kEvent) add_event();
    if (stack_.back() == Context::kDevice && !device_name_.empty() && out_.devices.size() < 1024)
      out_.devices[device_id_] = device_name_;
    stack_.pop_back();
    return true;
  }
  bool start_array(std::size_t) override {
    const Context in = stack_.empty() ? Context::kOther : stack_.back();
    Context next = Context::kOther;
    if (stack_.empty()) next = Context::kEvents;  // a list without a frame is allowed
    if (in == Context::kRoot && key_ == "traceEvents") next = Context::kEvents;
    if (in == Context::kRoot && key_ == "deviceProperties") next = Context::kDevices;
    if (in == Context::kArgs && key_ == "grid") next = Context::kGrid;
    if (in == Context::kArgs && key_ == "block") next = Context::kBlock;
    found_events_ |= next == Context::kEvents;
    return push(next);
  }
  bool end_array() override {
    stack_.pop_back();
    return true;
  }
  bool parse_error(std::size_t position, const std::string& token,
                   const nlohmann::detail::exception& error) override {
    position_ = position;
    ends_early_ = std::string(error.what()).find("unexpected end of input") != std::string::npos ||
                  std::string(error.what()).find("missing closing quote") != std::string::npos;
    problem_ = ends_early_ ? "it ends early" : "this is not JSON: `" + token.substr(0, 40) + "`";
    return false;
  }

  base::Result<Recording> finish() {
    if (!problem_.empty() && (!ends_early_ || events_.empty()))
      return base::error(base::Code::kInvalid,
                         out_.file + ": byte " + std::to_string(position_) + ": " + problem_);
    if (is_tessera_)
      return base::error(base::Code::kUnsupported,
                         out_.file + ": a trace of Tessera has no times of the GPU; `tessera trace --from " +
                             out_.file + " --chakra t` works them out, and t.0.et can be read");
    if (!found_events_)
      return base::error(base::Code::kInvalid,
                         out_.file + ": it has no `traceEvents`: is this a profiler's trace?");
    if (!problem_.empty())
      out_.remarks.push_back("the file is cut off at byte " + std::to_string(position_) +
                             "; what is before was read");
    for (auto& [e, correlation] : events_) join(&e, correlation);
    for (auto& [e, correlation] : events_) out_.events.push_back(e);
    if (events_.size() == kMostEvents)
      out_.remarks.push_back("only the first four million operations were read");
    return std::move(out_);
  }

 private:
  enum class Context : uint8_t { kOther, kRoot, kEvents, kEvent, kArgs, kGrid, kBlock, kDevices, kDevice };

  bool push(Context next) {
    stack_.push_back(next);
    if (stack_.size() <= kMostDepth) return true;
    problem_ = "lists and objects are nested more than 256 deep";
    return false;
  }

  // Negative: none that can be.
  void time(int64_t ns) {
    if (key_ == "ts") {
      event_.start_ns = std::max<int64_t>(0, ns);
      has_time_ = ns >= 0;
    }
    if (key_ == "dur") event_.length_ns = std::clamp<int64_t>(ns, 0, kMostLengthNs);
  }

  bool value(double v, int64_t whole) {
    if (stack_.empty()) return true;
    switch (stack_.back()) {
      case Context::kEvent:
        time(v >= 0 && v <= kMostTimeUs ? whole * 1000 : -1);
        break;
      case Context::kArgs:
        argument(v, whole);
        break;
      case Context::kGrid:
        grid_ *= std::max(1.0, v);
        has_grid_ = true;
        break;
      case Context::kBlock:
        block_ *= std::max(1.0, v);
        has_block_ = true;
        break;
      case Context::kDevice:
        if (key_ == "id") device_id_ = uint32_t(std::clamp<int64_t>(whole, 0, UINT32_MAX));
        break;
      case Context::kOther:
      case Context::kRoot:
      case Context::kEvents:
      case Context::kDevices:
        break;
    }
    return true;
  }

  void argument(double v, int64_t whole) {
    if (key_ == "correlation") correlation_ = whole;
    if (key_ == "device") event_.device = uint32_t(std::clamp<int64_t>(whole, 0, UINT32_MAX));
    if (key_ == "stream") event_.stream = uint64_t(std::max<int64_t>(0, whole));
    if (key_ == "registers per thread") event_.registers = uint32_t(std::clamp(v, 0.0, 1024.0));
    if (key_ == "shared memory") event_.shared_bytes = uint64_t(std::clamp(v, 0.0, 1e9));
  }

  void add_event() {
    if (phase_ != "X" || !has_time_) return;
    const auto at = std::find_if(std::begin(kCategories), std::end(kCategories),
                                 [&](const Category& c) { return category_ == c.name; });
    const Kind kind = at == std::end(kCategories) ? Kind::kOther : at->kind;
    if (kind == Kind::kOther) return add_range();
    if (out_.names.size() >= kMostNames) return;
    if (kind == Kind::kCall) return add_call();
    if (events_.size() >= kMostEvents) return;
    event_.kind = kind == Kind::kKernel ? EventKind::kKernel
                  : kind == Kind::kCopy ? EventKind::kCopy
                                        : EventKind::kSet;
    event_.name = names_.index(name_);
    if (has_grid_) event_.blocks = uint64_t(std::min(grid_, double(1u << 31)));
    if (has_block_) event_.threads_per_block = uint32_t(std::min(block_, 1024.0));
    events_.emplace_back(event_, correlation_);
  }

  // Annotations of the host; those of the GPU repeat them.
  void add_range() {
    if (category_ == "gpu_user_annotation" || out_.ranges.size() >= kMostRanges) return;
    if (category_ == "user_annotation" || name_.starts_with("ProfilerStep#"))
      out_.ranges.push_back({name_, event_.start_ns, event_.end_ns()});
  }

  void add_call() {
    if (call_waits(name_)) {
      if (events_.size() >= kMostEvents) return;
      event_.kind = EventKind::kWait;
      event_.device = kAnyDevice;
      event_.call_ns = event_.start_ns;
      event_.call_length_ns = event_.length_ns;
      event_.name = names_.index(name_);
      events_.emplace_back(event_, -1);
    } else if (call_launches(name_) && correlation_ >= 0 && calls_.size() < kMostEvents) {
      calls_.try_emplace(correlation_, Call{event_.start_ns, event_.length_ns, names_.index(name_)});
    }
  }

  void join(Event* e, int64_t correlation) const {
    const auto call = calls_.find(correlation);
    if (call == calls_.end()) return;
    const std::string& name = out_.names[call->second.name];
    e->call_ns = call->second.start_ns;
    e->call_length_ns = call->second.length_ns;
    e->may_block = e->kind == EventKind::kCopy && copy_may_block(out_.names[e->name], name);
    if (call_is_of_graph(name)) e->graph = uint64_t(correlation) + 1;
  }

  Recording out_;
  Names names_;
  std::vector<Context> stack_;
  std::string key_, phase_, category_, name_, device_name_;
  Event event_;
  bool has_time_ = false, has_grid_ = false, has_block_ = false, found_events_ = false, ends_early_ = false,
       is_tessera_ = false;
  int64_t correlation_ = -1;
  double grid_ = 1, block_ = 1;
  uint32_t device_id_ = 0;
  std::vector<std::pair<Event, int64_t>> events_;
  std::unordered_map<int64_t, Call> calls_;
  size_t position_ = 0;
  std::string problem_;
};

}  // namespace

base::Result<Recording> read_kineto(std::istream& text, const std::string& name) {
  Mended mended(text.rdbuf());
  std::istream in(&mended);
  Handler handler(name);
  nlohmann::json::sax_parse(in, &handler, nlohmann::json::input_format_t::json, /*strict=*/false);
  return handler.finish();
}

}  // namespace tessera::simulator::traces
