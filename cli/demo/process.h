// Child processes of the demo: started with an environment and output files, never left behind (they get
// SIGKILL when the demo dies, and when their Process is destroyed). Main thread only.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/result.h"

namespace tessera::cli {

// From the call on, SIGINT, SIGTERM and SIGHUP do not end this process: what waits here returns early, so
// that the demo takes its children and its scratch folders with it.
void catch_interrupts();
int interrupted_by();  // the signal, 0 if there was none

// NAME=VALUE is set in this process's environment; "NAME" without '=' is removed from it.
void set_variables(const std::vector<std::string>& environment);

class Process {
 public:
  // `environment`: as set_variables, on top of the present one.
  static base::Result<Process> start(const std::vector<std::string>& argv,
                                     const std::vector<std::string>& environment,
                                     const std::string& stdout_path, const std::string& stderr_path);
  Process() = default;
  Process(Process&& other) noexcept : pid_(other.pid_), what_(std::move(other.what_)) { other.pid_ = -1; }
  Process& operator=(Process&& other) noexcept;
  Process(const Process&) = delete;
  ~Process() { kill_now(); }

  pid_t pid() const { return pid_; }
  bool running();
  // Exit status (128 + signal if killed); an error after timeout_s or an interrupt, the process still running
  // then.
  base::Result<int> wait(double timeout_s);
  // Asks politely, then insists after `patience_s`. Exit status as wait().
  base::Result<int> stop(double patience_s);
  void kill_now();

 private:
  pid_t pid_ = -1;
  std::string what_;
  int status_ = 0;
};

// Does this interpreter end well with that program?
bool python_runs(const char* python, const char* code, double patience_s);

// The user's python3, if it has matplotlib; else Debian's, if that has it.
const char* python_that_plots();

}  // namespace tessera::cli
