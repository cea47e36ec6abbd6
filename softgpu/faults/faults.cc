#include "softgpu/faults/faults.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

namespace tessera::softgpu::faults {
namespace {

struct Trigger {
  std::string name;  // "oom", "launch", "hang" or a symbol
  uint64_t nth = 0;  // 0 = every one
  int code = 0;
  std::atomic<uint64_t> seen{0};

  bool fires() {
    const uint64_t now = seen.fetch_add(1, std::memory_order_relaxed) + 1;  // relaxed: only a count
    return nth == 0 || now == nth;
  }
};

struct Script {
  std::vector<std::unique_ptr<Trigger>> triggers;
  double slowness = 1;
};

std::atomic<Script*> g_script{nullptr};  // set once (release), read by all (acquire); never freed

bool parse_number(std::string_view text, uint64_t* value) {
  if (text == "*") return *value = 0, true;
  if (text.empty() || text.find_first_not_of("0123456789") != text.npos) return false;
  *value = std::strtoull(std::string(text).c_str(), nullptr, 10);
  return *value > 0;
}

std::string parse_item(std::string_view item, Script* script) {
  const std::string quoted = "'" + std::string(item) + "'";
  if (item.starts_with("slow=")) {
    script->slowness = std::strtod(std::string(item.substr(5)).c_str(), nullptr);
    return script->slowness >= 1 ? "" : quoted + ": the factor must be a number >= 1";
  }
  const size_t at = item.find('@'), equals = item.find('=');
  if (at == item.npos) return quoted + ": expected NAME@N, SYMBOL@N=CODE or slow=F";
  auto trigger = std::make_unique<Trigger>();
  trigger->name = item.substr(0, at);
  if (!parse_number(item.substr(at + 1, equals == item.npos ? item.npos : equals - at - 1), &trigger->nth))
    return quoted + ": after '@' a number from 1, or *";
  const bool is_symbol = trigger->name.starts_with("cu");
  if (is_symbol) {
    if (equals == item.npos) return quoted + ": expected SYMBOL@N=CODE";
    trigger->code = std::atoi(std::string(item.substr(equals + 1)).c_str());
    if (trigger->code <= 0) return quoted + ": the code must be a positive CUresult";
  } else if (trigger->name != "oom" && trigger->name != "launch" && trigger->name != "hang") {
    return quoted + ": unknown fault (oom, launch, hang, slow=, or a driver symbol)";
  }
  script->triggers.push_back(std::move(trigger));
  return "";
}

bool fires(const char* name, int* code = nullptr) {
  Script* script = g_script.load(std::memory_order_acquire);  // pairs with load()
  if (!script) return false;
  for (auto& trigger : script->triggers) {
    if (trigger->name != name || !trigger->fires()) continue;
    if (code) *code = trigger->code;
    return true;
  }
  return false;
}

}  // namespace

std::string load(const char* text) {
  if (!text || !*text) return "";
  auto script = std::make_unique<Script>();
  std::string_view rest = text;
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    const std::string problem = parse_item(rest.substr(0, comma), script.get());
    if (!problem.empty()) return problem;
    rest = comma == rest.npos ? std::string_view() : rest.substr(comma + 1);
  }
  g_script.store(script.release(), std::memory_order_release);  // pairs with fires()
  return "";
}

bool armed() {
  return g_script.load(std::memory_order_acquire) != nullptr;
}

int on_call(const char* symbol) {
  int code = 0;
  return fires(symbol, &code) ? code : 0;
}

bool on_allocation() {
  return fires("oom");
}

KernelFault on_kernel() {
  if (fires("launch")) return KernelFault::kFail;
  return fires("hang") ? KernelFault::kHang : KernelFault::kNone;
}

double slowness() {
  const Script* script = g_script.load(std::memory_order_acquire);
  return script ? script->slowness : 1;
}

}  // namespace tessera::softgpu::faults
