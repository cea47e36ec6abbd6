#include "tests/device/prologue/answer.h"

#include <nlohmann/json.hpp>

#include "tests/device/prologue/code.h"

namespace tessera::image {
namespace {

using nlohmann::json;

std::string text_at(const json& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

}  // namespace

base::Result<std::vector<std::string>> equal_kinds(std::string_view answer, std::string_view gpu,
                                                   std::string_view driver) {
  const json all = json::parse(answer, nullptr, /*allow_exceptions=*/false);
  if (text_at(all, "question") != "H20" || !all.contains("device")) return bad("no answer to H20");
  if (gpu.empty() || text_at(all["device"], "gpu") != gpu)
    return refused("the answer is of another GPU, " + text_at(all["device"], "gpu"));
  if (driver.empty() || text_at(all, "driver") != driver)
    return refused("the answer is of another driver, " + text_at(all, "driver"));
  if (text_at(all, "asked_of") != "machine code") return refused("machine code was not asked");
  std::vector<std::string> kinds;
  for (const auto& [key, value] : all.items())
    if (value == "equal") kinds.push_back(key);
  return kinds;
}

}  // namespace tessera::image
