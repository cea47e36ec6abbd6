// The common part of every attack program: its options, the clock of its run, its findings and its report.
//
//   int main(int argc, char** argv) {
//     attack::Run run("kill_storm", argc, argv);
//     while (run.goes_on()) { ...; if (broken) run.found("what a reader needs to know"); }
//     return run.finish();
//   }
// One thread and one process: a forked child says what it found by its exit status or a pipe.
#pragma once

#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

namespace tessera::attack {

class Run {
 public:
  // Options: --seconds S --seed N --json FILE. Wrong ones end the program with status 2.
  Run(std::string name, int argc, char** argv);

  uint64_t seed() const { return seed_; }
  std::mt19937_64& random() { return random_; }
  bool goes_on() const;  // time is left and there are few findings
  bool few_findings() const;
  double seconds_left() const;
  void ran() { ++runs_; }  // one attack more, whatever came of it
  void found(const std::string& text);
  void note(const std::string& name, double value) { notes_[name] = value; }  // a figure for the report
  // Writes the report, and says it. 0 if nothing was found, else 1.
  int finish() const;

 private:
  std::string name_, json_;
  double seconds_ = 5;
  uint64_t seed_ = 1, end_ns_ = 0, runs_ = 0;
  std::mt19937_64 random_;
  std::vector<std::string> findings_;
  std::map<std::string, double> notes_;
};

// An empty folder that other users may search but not list; removed with what is in it.
class Folder {
 public:
  Folder();
  ~Folder();
  Folder(const Folder&) = delete;
  std::string path(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace tessera::attack
