// The driver of this process: start-up, the calling thread's state, and the checks that open every entry
// point.
//
// One `Driver`, made by cuInit, never destroyed (conventions rule 20): after the library's destructor ran,
// calls answer CUDA_ERROR_DEINITIALIZED. A forked child of an initialised process answers
// CUDA_ERROR_NOT_INITIALIZED, as NVIDIA's driver does: threads and locks of the parent do not exist there.
#pragma once

#include <pthread.h>

#include <cstring>
#include <span>
#include <vector>

#include "softgpu/driver/objects.h"

#include "profiles/gpu_description.h"

namespace tessera::softgpu::driver {

// A program may write any number where an enumeration belongs: this reads it as a number.
template <class Enum>
unsigned number_in(const Enum& written) {
  static_assert(sizeof(Enum) == sizeof(unsigned));
  unsigned number = 0;
  std::memcpy(&number, &written, sizeof number);
  return number;
}

// The GPU of the machine that a device of the process is. A restore may exchange these.
struct PhysicalGpu {
  std::unique_ptr<timing::Engine> engine;
  profiles::GpuDescription gpu;
  bool mps = false;
};

struct Device : PhysicalGpu {
  CUdevice ordinal = 0;

  std::mutex primary_mutex;  // guards the three below
  std::shared_ptr<Context> primary;
  unsigned primary_retained = 0;
  unsigned primary_flags = 0;

  int attribute(int number) const;  // 0 if the description does not know it
  unsigned sm() const { return gpu.cc_major * 10 + gpu.cc_minor; }
};

struct Driver {
  std::vector<std::unique_ptr<Device>> devices;  // by CUdevice; at least one; constant
  // Other GPUs of the machine, once a restore has named them (move_devices). An engine that was used is never destroyed.
  std::vector<PhysicalGpu> hidden;
  unsigned functional_threads = 1;  // CPU threads that one grid may use

  // For questions about operations (complete, code, wait, times), which any device's engine answers.
  timing::Engine& engine() { return *devices.front()->engine; }

  Registry<Context> contexts;
  Registry<Stream> streams;
  Registry<Event> events;
  Registry<Module> modules;
  Registry<Function> functions;
  Registry<Library> libraries;
  Registry<LibraryKernel> kernels;
  Registry<Graph> graphs;
  Registry<GraphExec> graph_execs;
  Registry<Node> nodes;  // non-owning pointers: lifetime is the graph's

  std::atomic<uint64_t> next_id{1};  // contexts, streams, captures, buffers
};

Driver& driver();                       // only after enter() succeeded
Device* find_device(CUdevice ordinal);  // null: there is none of that number
Device& device_of(const Context& context);
// Puts other GPUs behind the process's devices, while it is checkpointed. The pairs name every GPU of the machine, also what
// CUDA_VISIBLE_DEVICES hides, once as old and once as new. Refused: nothing has changed.
CUresult move_devices(std::span<const CUcheckpointGpuPair> pairs);
// Any two devices of the machine are peers; a device is not its own.
bool can_access_peer(CUdevice device, CUdevice peer);

// Per thread; grows on first use.
struct Thread {
  uint64_t number = 0;                          // unique in the process, never reused
  std::vector<std::shared_ptr<Context>> stack;  // top = back; a null entry is "no context"
  CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  std::vector<std::weak_ptr<Context>> stream_contexts;  // where this thread has a per-thread stream
  bool in_callback = false;                             // a host function runs: no CUDA calls
  uint64_t tag = 0;       // of the kernels that it launches, for the trace (operations/table.h); 0: none
  uint64_t captured = 0;  // of these, nodes of graphs
};
Thread& thread();

// First line of every entry point: initialised? not forked? not inside a host function? no scripted fault?
CUresult enter(const char* symbol);
CUresult initialise(unsigned flags);  // cuInit
// Context of the calling thread, checked: 201 none, 709 destroyed, its sticky error.
CUresult current(std::shared_ptr<Context>* context);
// The same without the sticky error, for calls that clean up.
CUresult current_even_if_failed(std::shared_ptr<Context>* context);

std::shared_ptr<Context> make_context(Device& device, unsigned flags, bool primary);
// Those that streams are of; the other handles are green contexts as contexts.
std::vector<std::shared_ptr<Context>> contexts_with_work();
void destroy_context(const std::shared_ptr<Context>& context);
// Makes an error of the device sticky: what was enqueued no longer runs, calls report it from now on.
void poison(Context& context, int code);
CUresult sticky(const Context& context);

inline CUresult result(int code) {
  return static_cast<CUresult>(code);
}

// A thread that is cancelled inside a call ends when the call does: unwound in the middle it would leave
// locks held and operations half made.
class UncancelledThread {
 public:
  UncancelledThread() { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
  ~UncancelledThread() { pthread_setcancelstate(before_, nullptr); }
  UncancelledThread(const UncancelledThread&) = delete;

 private:
  int before_ = 0;
};

// A call of the program, from its first line to its return.
class Call {
 public:
  Call();
  ~Call();
  Call(const Call&) = delete;

 private:
  const UncancelledThread uncancelled_;
  const bool counted_;  // for checkpoints (checkpoint.h)
};

// `TS_ENTER(cuMemAlloc_v2);` returns from the entry point if the call may not go on.
#define TS_ENTER(symbol)                          \
  const ::tessera::softgpu::driver::Call ts_call; \
  if (CUresult entered = ::tessera::softgpu::driver::enter(#symbol)) return entered
// ... and names the calling thread's context.
#define TS_CONTEXT(symbol, name)                             \
  TS_ENTER(symbol);                                          \
  std::shared_ptr<::tessera::softgpu::driver::Context> name; \
  if (CUresult found = ::tessera::softgpu::driver::current(&name)) return found

// Text for people: in the log (logs.h) and, with TESSERA_SOFTGPU_REPORT=1, on standard error. No lock of the
// driver may be held, since programs' callbacks get it. A notice goes to standard error in any case.
void report(const char* format, ...) __attribute__((format(printf, 1, 2)));
void notice(const char* format, ...) __attribute__((format(printf, 1, 2)));
void report_fault(const exec::Fault& fault);
int code_of(exec::FaultKind kind);

}  // namespace tessera::softgpu::driver
