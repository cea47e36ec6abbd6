// Taking a trace: the daemon says which clients there are, their memory is read every few milliseconds. Bounded: it
// keeps a number of events, and counts later ones as lost. Main thread.
#pragma once

#include <map>
#include <string>

#include "base/scoped_fd.h"
#include "cli/trace/model.h"
#include "ipc/channel/client.h"
#include "ipc/channel/trace_ring.h"

namespace tessera::cli {

class TraceTaker {
 public:
  // `socket`: "" = this user's default; `pid`: 0 = all clients that this user may trace.
  base::Status start(const std::string& socket, long pid);
  base::Status pump();  // what came since; an error ends the trace, what came before stays
  const Trace& so_far() const { return trace_; }
  Trace finish();  // in order of time; the clients trace no longer

 private:
  struct Source {
    ipc::Mapping memory;
    ipc::TraceReader reader;
  };
  void drain(bool last);

  base::ScopedFd socket_;
  std::map<uint32_t, Source> sources_;
  Trace trace_;
};

// JSON, or text for people. "": standard output. Errors name the file.
base::Status write_trace(const Trace& trace, const std::string& path, bool text);
base::Result<Trace> read_trace(const std::string& path);

// One file for each client that launched something: PREFIX.0.et ... Says on standard error whose each is.
base::Status write_chakra(const Trace& trace, const std::string& prefix);

struct TraceOptions {
  std::string socket, output;
  std::string chakra;  // prefix of files, or "": none
  std::string from;    // a file of an earlier trace instead; "": take one
  double seconds = 0;  // 0: until a signal
  long pid = 0;        // 0: all
  bool text = false;
};
int trace(const TraceOptions& options);

// Runs argv, traces until it ends: its exit status (128 + signal).
int run_traced(char* const* argv, const std::string& socket, const std::string& output);

struct ExplainOptions {
  std::string file;  // "": take a trace now
  std::string socket;
  double seconds = 10;  // of a trace that is taken now
  int slowest = 5;
};
int explain(const ExplainOptions& options);

}  // namespace tessera::cli
