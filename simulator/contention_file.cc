#include "simulator/contention_file.h"

#include <nlohmann/json.hpp>
#include <sstream>

#include "base/user_file.h"
#include "simulator/names.h"

namespace tessera::simulator {
namespace {

using base::Code;
using nlohmann::json;

constexpr size_t kMaxBytes = 1 << 20;

base::Status wrong(const std::string& name, const std::string& what) {
  return base::error(Code::kInvalid, name + ": " + what);
}

const Name* class_of(const std::string& text) {
  for (const Name& known : kClassNames)
    if (text == known.text) return &known;
  return nullptr;
}

// {"compute": {"compute": 0.1, "memory": 0.2}, ...}
base::Status read_table(const json& rows, const std::string& where, ContentionTable* table) {
  if (!rows.is_object())
    return wrong(where, "must be an object of classes, such as {\"compute\": {\"memory\": 0.3}}");
  for (const auto& [own, row] : rows.items()) {
    const Name* row_class = class_of(own);
    if (row_class == nullptr || !row.is_object())
      return wrong(where + "." + own, "must be one of " + class_list() + ", with an object of classes");
    for (const auto& [other, value] : row.items()) {
      const Name* column_class = class_of(other);
      if (column_class == nullptr)
        return wrong(where + "." + own + "." + other, "must be one of " + class_list());
      if (!value.is_number() || !(value.get<double>() >= 0 && value.get<double>() <= kMostContention))
        return wrong(where + "." + own + "." + other,
                     "must be a number from 0 to " + std::to_string(int(kMostContention)));
      (*table)[size_t(row_class->value)][size_t(column_class->value)] = value.get<double>();
    }
  }
  return base::ok();
}

}  // namespace

base::Status read_contention_answer(std::string_view text, const std::string& name, GpuSpec* gpu) {
  if (text.size() > kMaxBytes) return wrong(name, "is larger than 1 MiB: is it an answer to H16?");
  const json answer = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!answer.is_object())
    return wrong(name, "is not one JSON object, as tests/device/h16_contention prints it");
  const auto question = answer.find("question");
  if (question == answer.end() || *question != "H16")
    return wrong(name, "is not an answer to H16: `question` must be \"H16\"");
  for (const char* bad : {"failed", "skipped"})
    if (answer.contains(bad)) return wrong(name, std::string("says `") + bad + "`: it has no measurement");
  GpuSpec read = *gpu;
  const struct {
    const char* key;
    ContentionTable* table;
  } kTables[] = {{"contention", &read.contention}, {"contention_disjoint", &read.contention_disjoint}};
  if (!answer.contains("contention")) return wrong(name, "has no `contention`");
  for (const auto& [key, table] : kTables) {
    const auto rows = answer.find(key);
    if (rows == answer.end()) continue;  // no green contexts there: the scenario's table stays
    if (base::Status s = read_table(*rows, name + ": " + key, table); !s.ok()) return s;
    const auto covered = answer.find(std::string(key) + "_covered");
    if (covered != answer.end() && *covered != true)
      return wrong(name, std::string("`") + key +
                             "_covered` is not true: the neighbour ended before the measurement did");
  }
  *gpu = read;
  return base::ok();
}

base::Status load_contention_answer(const std::string& path, GpuSpec* gpu) {
  const auto text = base::read_user_file(path, kMaxBytes);
  if (!text)
    return base::error(text.error().code, text.error().text + "; give the JSON that h16_contention printed");
  return read_contention_answer(*text, path, gpu);
}

}  // namespace tessera::simulator
