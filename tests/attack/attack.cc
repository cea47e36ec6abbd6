#include "tests/attack/attack.h"

#include <sys/stat.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/units.h"

namespace tessera::attack {

constexpr size_t kMostFindings = 20;  // more of them say nothing new

Run::Run(std::string name, int argc, char** argv) : name_(std::move(name)) {
  CLI::App app("attack_" + name_ + ": exit status 0 if it finds nothing");
  app.add_option("--seconds", seconds_, "how long")->check(CLI::Range(0.1, 86'400.0));
  app.add_option("--seed", seed_, "of its random choices");
  app.add_option("--json", json_, "where to write the report");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& problem) {
    std::exit(app.exit(problem) == 0 ? 0 : 2);
  }
  random_.seed(seed_);
  end_ns_ = base::now_ns() + uint64_t(seconds_ * double(base::kNsPerS));
}

bool Run::goes_on() const {
  return base::now_ns() < end_ns_ && few_findings();
}

bool Run::few_findings() const {
  return findings_.size() < kMostFindings;
}

double Run::seconds_left() const {
  const uint64_t now_ns = base::now_ns();
  return now_ns >= end_ns_ ? 0 : double(end_ns_ - now_ns) / double(base::kNsPerS);
}

void Run::found(const std::string& text) {
  std::printf("FOUND by attack_%s (seed %llu): %s\n", name_.c_str(), static_cast<unsigned long long>(seed_),
              text.c_str());
  std::fflush(stdout);
  findings_.push_back(text);
}

int Run::finish() const {
  if (!json_.empty()) {
    const nlohmann::json report = {
        {"name", name_}, {"seed", seed_}, {"runs", runs_}, {"findings", findings_}, {"notes", notes_}};
    std::ofstream(json_) << report.dump(1) << '\n';
  }
  std::printf("attack_%s: %llu runs, %zu findings, seed %llu\n", name_.c_str(),
              static_cast<unsigned long long>(runs_), findings_.size(),
              static_cast<unsigned long long>(seed_));
  return findings_.empty() ? 0 : 1;
}

Folder::Folder() {
  char path[] = "/tmp/tessera-attack-XXXXXX";
  if (::mkdtemp(path) == nullptr) std::abort();
  path_ = path;
  (void)::chmod(path, 0711);
}

Folder::~Folder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace tessera::attack
