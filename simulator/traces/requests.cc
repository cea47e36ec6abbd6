#include "simulator/traces/requests.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "base/split.h"
#include "simulator/traces/text.h"

namespace tessera::simulator::traces {
namespace {

constexpr size_t kMostRequests = 4'000'000, kMostLine = 4'096;
constexpr double kMostArrivalS = 1e7, kMostTokens = 1e7;

enum Column : uint8_t { kArrival, kPrompt, kOutput, kColumnCount };
constexpr struct {
  const char* name;
  Column column;
  double least, most;
} kColumns[] = {{"arrival_s", kArrival, 0, kMostArrivalS},
                {"input_tokens", kPrompt, 0, kMostTokens},
                {"context_tokens", kPrompt, 0, kMostTokens},
                {"output_tokens", kOutput, 0, kMostTokens},
                {"generated_tokens", kOutput, 0, kMostTokens}};

}  // namespace

base::Result<Requests> read_requests(const std::string& path) {
  auto file = FileText::open(path);
  if (!file.ok()) return file.error();
  Requests out;
  std::vector<int> column_of;  // of kColumns, by place in the line; -1: not used
  std::string line;
  size_t number = 0;
  double before_s = 0;
  const auto wrong = [&](const std::string& what) {
    return base::error(base::Code::kInvalid, path + ":" + std::to_string(number) + ": " + what);
  };
  while (std::getline(file->stream(), line)) {
    ++number;
    if (line.size() > kMostLine) return wrong("the line is too long");
    if (line.ends_with('\r')) line.pop_back();
    if (line.empty() || line[0] == '#') continue;
    const std::vector<std::string_view> fields = base::split(line, ',');
    if (column_of.empty()) {
      bool there[kColumnCount] = {};
      for (const std::string_view field : fields) {
        column_of.push_back(-1);
        for (size_t i = 0; i < std::size(kColumns); ++i)
          if (field == kColumns[i].name) {
            column_of.back() = int(i);
            there[kColumns[i].column] = true;
          }
      }
      if (!there[kArrival] || !there[kPrompt] || !there[kOutput])
        return wrong("the header must name arrival_s, input_tokens and output_tokens");
      continue;
    }
    if (fields.size() != column_of.size()) return wrong("it has another number of columns than the header");
    double values[kColumnCount] = {};
    for (size_t i = 0; i < fields.size(); ++i) {
      if (column_of[i] < 0) continue;
      const auto& column = kColumns[column_of[i]];
      double& value = values[column.column];
      const auto [end, error] = std::from_chars(fields[i].begin(), fields[i].end(), value);
      if (error != std::errc() || end != fields[i].end() || !(value >= column.least && value <= column.most))
        return wrong("`" + std::string(fields[i].substr(0, 40)) + "` is no " + column.name);
    }
    if (out.lengths.size() == kMostRequests) return wrong("these are more than 4 million requests");
    if (!out.lengths.empty() && values[kArrival] < before_s) return wrong("it arrived before the last one");
    if (!out.lengths.empty()) out.gaps_ns.push_back((values[kArrival] - before_s) * 1e9);
    before_s = values[kArrival];
    out.lengths.push_back({std::max(1u, uint32_t(values[kPrompt])), std::max(1u, uint32_t(values[kOutput]))});
  }
  if (const std::string problem = file->problem(); !problem.empty()) return wrong(problem);
  if (out.lengths.size() < 2) return wrong("there are no two requests in it");
  return out;
}

}  // namespace tessera::simulator::traces
