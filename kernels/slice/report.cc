#include "kernels/ptx/printer.h"
#include "kernels/slice/internal.h"

namespace tessera::slice {
namespace {

struct Row {
  const char* name;
  const char* text;
};
constexpr Row kRows[] = {
#define TS_REFUSAL(id, name, text) {name, text},
#include "kernels/slice/refusals.def"
};

}  // namespace

const char* refusal_name(Refusal refusal) {
  return kRows[static_cast<size_t>(refusal)].name;
}
const char* refusal_text(Refusal refusal) {
  return kRows[static_cast<size_t>(refusal)].text;
}

std::string at(const ptx::Instruction& instruction) {
  std::string text = ptx::print(instruction);
  if (text.size() > 120) {
    text.resize(117);
    text += "...";
  }
  return "line " + std::to_string(instruction.at.line) + ": " + text;
}

Verdict refuse(Refusal refusal, std::string detail) {
  return {refusal, std::move(detail)};
}

}  // namespace tessera::slice
