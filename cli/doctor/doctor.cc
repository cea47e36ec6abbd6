#include "cli/doctor/doctor.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/json_text.h"
#include "base/printable.h"

namespace tessera::cli {
namespace {

struct StateName {
  const char *json, *shown;
};
constexpr StateName kStates[] = {{"ok", "ok  "}, {"note", "note"}, {"warning", "WARN"}, {"failure", "FAIL"}};

const StateName& name_of(State state) {
  return kStates[size_t(state)];
}

State worst(const std::vector<Finding>& findings) {
  State state = State::kOk;
  for (const Finding& f : findings) state = std::max(state, f.state);
  return state;
}

void print_json(const std::vector<Finding>& findings, double took_ms) {
  nlohmann::json rows = nlohmann::json::array();
  for (const Finding& f : findings)
    rows.push_back({{"check", f.check},
                    {"state", name_of(f.state).json},
                    {"finding", f.finding},
                    {"consequence", f.consequence},
                    {"remedy", f.remedy}});
  const nlohmann::json out = {
      {"verdict", name_of(worst(findings)).json}, {"findings", rows}, {"doctor.ms", took_ms}};
  puts(base::json_text(out, 2).c_str());
}

void print_text(const std::vector<Finding>& findings) {
  for (const Finding& f : findings) {
    printf("%s  %-14s %s\n", name_of(f.state).shown, f.check.c_str(), base::printable(f.finding).c_str());
    if (!f.consequence.empty()) printf("                     %s\n", base::printable(f.consequence).c_str());
    if (!f.remedy.empty()) printf("                     -> %s\n", base::printable(f.remedy).c_str());
  }
}

}  // namespace

int exit_status(const std::vector<Finding>& findings) {
  const State state = worst(findings);
  return state == State::kFailure ? 3 : state == State::kWarning ? 1 : 0;
}

int doctor(const DoctorOptions& options) {
  if (options.gpu != "auto" && options.gpu != "soft") {
    fprintf(stderr, "tessera doctor: --gpu '%s' is none of: auto, soft\n", options.gpu.c_str());
    return 2;
  }
  const uint64_t begin_ns = base::now_ns();
  const Layout layout = find_layout();
  std::vector<Finding> findings = examine_machine(options, layout);
  if (!options.command.empty())
    for (Finding& f : examine_program(options, layout)) findings.push_back(std::move(f));
  if (options.json)
    print_json(findings, double(base::now_ns() - begin_ns) / 1e6);
  else
    print_text(findings);
  return exit_status(findings);
}

}  // namespace tessera::cli
