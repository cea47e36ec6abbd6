// Objects behind the handles of the driver API, and the registries that tell a live handle from a wild pointer.
//
// A handle is the address of its object. Every entry point looks its handles up (`find`) and works on a
// shared_ptr, so that a destroy in another thread never frees what is in use; a handle that is not registered
// gives the documented error instead of a crash. Locks, outermost first: Context::mutex; Capture registry
// (capture.cc); Memory::mutex (memory.h); Registry::mutex_.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

#include "softgpu/driver/cuda_api.h"

#include "kernels/ptx/ir.h"
#include "softgpu/driver/hardware_queue.h"
#include "softgpu/exec/exec.h"
#include "softgpu/timing/engine.h"

namespace tessera::softgpu::driver {

using timing::OpRef;

template <class T>
class Registry {
 public:
  void add(std::shared_ptr<T> object) {
    std::unique_lock lock(mutex_);
    const void* key = object.get();
    live_.emplace(key, std::move(object));
  }
  std::shared_ptr<T> find(const void* handle) const {
    if (!handle) return nullptr;
    std::shared_lock lock(mutex_);
    auto it = live_.find(handle);
    return it == live_.end() ? nullptr : it->second;
  }
  std::shared_ptr<T> remove(const void* handle) {
    std::unique_lock lock(mutex_);
    auto it = live_.find(handle);
    if (it == live_.end()) return nullptr;
    std::shared_ptr<T> object = std::move(it->second);
    live_.erase(it);
    return object;
  }
  std::vector<std::shared_ptr<T>> list() const {
    std::shared_lock lock(mutex_);
    std::vector<std::shared_ptr<T>> all;
    for (const auto& [key, object] : live_) all.push_back(object);
    return all;
  }
  // Removes and returns all objects that `match` accepts (context teardown).
  template <class F>
  std::vector<std::shared_ptr<T>> remove_if(F match) {
    std::unique_lock lock(mutex_);
    std::vector<std::shared_ptr<T>> removed;
    for (auto it = live_.begin(); it != live_.end();) {
      if (match(*it->second)) {
        removed.push_back(std::move(it->second));
        it = live_.erase(it);
      } else {
        ++it;
      }
    }
    return removed;
  }

 private:
  mutable std::shared_mutex mutex_;  // guards live_
  std::unordered_map<const void*, std::shared_ptr<T>> live_;
};

class SharedEvent;
struct GreenContext;
struct UserHold;
struct Context;
struct Device;
struct Stream;
struct Event;
struct Graph;
struct Node;
struct Capture;

// ---- code -------------------------------------------------------------------------------------------------

// One module in one context (cuModuleLoad*), or the instance of a library in a context.
struct Function;
struct Module {
  Context* context = nullptr;  // owner; outlives the registry entry
  std::unique_ptr<exec::Program> program;
  uint64_t image_hash = 0;                  // of the PTX text: names the code in cost keys
  unsigned ptx_version = 0, target_sm = 0;  // 90, 75
  const void* library = nullptr;            // the Library it came from, or null
  std::mutex mutex;                         // guards functions
  std::map<std::string, std::shared_ptr<Function>> functions;
};

struct LegacyLaunch {  // set one by one (legacy_api.cc)
  std::array<uint32_t, 3> block{1, 1, 1};
  uint32_t shared_bytes = 0;
  std::vector<uint8_t> params;
};
struct Function {
  std::shared_ptr<Module> module;
  const exec::Kernel* kernel = nullptr;
  const exec::KernelInfo* info = nullptr;
  uint64_t cost_seed = 0;                  // hash of image and kernel name
  LegacyLaunch legacy;                     // guarded by Module::mutex
  std::atomic<bool> loaded{false};         // what cuFuncIsLoaded says; the code itself is always there
  std::atomic<int> max_dynamic_shared{0};  // bytes; opt-in limit, see attributes
  std::atomic<int> carveout{-1};           // preferred shared memory, per cent
  std::atomic<int> cluster_policy{0}, non_portable_cluster{0};
  std::array<std::atomic<int>, 3> cluster{};  // required cluster size, zeros if none
};

// cuLibraryLoadData: code without a context; modules are made where and when they are first needed (lazy
// loading).
struct LibraryKernel;
struct Code {  // PTX as one device runs it
  std::shared_ptr<const ptx::Module> module;
  uint64_t hash = 0;             // of the PTX text
  unsigned target_sm = 0;        // of the PTX
  uint32_t max_registers = 255;  // per thread: CU_JIT_MAX_REGISTERS
};
struct Library {
  std::map<unsigned, Code> codes;  // by compute capability of the devices there are (90); constant
  std::mutex mutex;                // guards modules
  std::map<uint64_t, std::shared_ptr<Module>> modules;            // by Context::id
  std::map<std::string, std::shared_ptr<LibraryKernel>> kernels;  // filled at load, constant then
};

struct LibraryKernel {
  std::weak_ptr<Library> library;
  const Library* library_handle = nullptr;
  std::string name;
  std::mutex mutex;                                // guards attributes
  std::map<CUfunction_attribute, int> attributes;  // set before or after loading, applied to each function
};

// ---- commands: what a stream or a graph node does ---------------------------------------------------------

// Marks the first kernel with a tag that became a node of a graph: operations/table.h has the same.
inline constexpr uint64_t kTagOfNode = uint64_t{1} << 63;

struct KernelCommand {
  std::shared_ptr<Function> function;
  std::array<uint32_t, 3> grid{1, 1, 1}, block{1, 1, 1};
  uint32_t dynamic_shared_bytes = 0;
  std::vector<uint8_t> params;
  bool cooperative = false;
  std::array<uint32_t, 3> cluster{};  // zeros: what the kernel says
  bool has_priority = false;
  int priority = 0;
  CUkernel kernel_handle = nullptr;                  // as given, for cuGraphKernelNodeGetParams
  std::vector<void*> param_pointers;                 // into params, handed out by the same call
  std::map<int, CUlaunchAttributeValue> attributes;  // of a node, by CUlaunchAttributeID
  uint64_t tag = 0;  // softgpu_tag_launches of the launching thread, for the trace; may have kTagOfNode
};
// A box of rows; 1D copies have height = depth = 1. Pitches in bytes, slice = pitch * height of the whole
// image.
struct CopyCommand {
  uint64_t dst = 0, src = 0;
  uint64_t width = 0, height = 1, depth = 1;
  uint64_t dst_pitch = 0, src_pitch = 0, dst_slice = 0, src_slice = 0;
  timing::CopyDirection direction = timing::CopyDirection::kDeviceToDevice;
  std::shared_ptr<std::vector<uint8_t>> staging;  // snapshot of pageable host memory; src points into it
  std::shared_ptr<const CUDA_MEMCPY3D> given;     // of a node: its parameters as they were given
};
struct MemsetCommand {
  uint64_t dst = 0, pitch = 0;
  uint32_t value = 0, element_bytes = 1;
  uint64_t width = 0, height = 1;  // in elements
};
struct HostCommand {
  CUhostFn function = nullptr;
  void* data = nullptr;
  CUstreamCallback callback = nullptr;  // instead of function (cuStreamAddCallback)
  CUstream stream = nullptr;
};
struct MemOpCommand {
  std::vector<CUstreamBatchMemOpParams> ops;
  bool waits() const {
    return std::any_of(ops.begin(), ops.end(), [](const CUstreamBatchMemOpParams& op) {
      return op.operation == CU_STREAM_MEM_OP_WAIT_VALUE_32 || op.operation == CU_STREAM_MEM_OP_WAIT_VALUE_64;
    });
  }
};
struct FreeCommand {
  uint64_t address = 0;
  bool from_graph = false;  // memory belongs to the graph: nothing to do
};
struct AllocCommand {
  uint64_t address = 0, bytes = 0;  // taken when the node was made; belongs to the graph
  std::shared_ptr<void> memory;
};
struct EventRecordCommand {
  std::shared_ptr<Event> event;
};
struct EventWaitCommand {
  std::shared_ptr<Event> event;
};
struct SharedRecordCommand {  // of an interprocess event; `number` was taken when the call was made
  std::shared_ptr<SharedEvent> event;
  uint64_t number = 0;
};
struct SharedWaitCommand {
  std::shared_ptr<SharedEvent> event;
  uint64_t number = 0;
};
struct ChildCommand {
  std::shared_ptr<Graph> graph;
};
struct EmptyCommand {
  std::shared_ptr<void> keep;  // until the operation is complete
};
// The value that a kernel sets and a conditional node asks; the handle is the word's address.
struct Condition {
  Context* context = nullptr;
  uint32_t* word = nullptr;
  unsigned default_value = 0;
  bool assign_default = false;  // at each launch
  ~Condition();
};
struct ConditionalCommand {
  std::shared_ptr<Condition> condition;
  CUgraphConditionalNodeType type = CU_GRAPH_COND_TYPE_IF;
  std::vector<std::shared_ptr<Graph>> bodies;
  std::vector<CUgraph> handles;  // of bodies, handed out when the node was made
};
struct SetConditionsCommand {  // start of a launch
  std::vector<std::shared_ptr<Condition>> conditions;
};

using Command =
    std::variant<KernelCommand, CopyCommand, MemsetCommand, HostCommand, MemOpCommand, FreeCommand,
                 AllocCommand, EventRecordCommand, EventWaitCommand, SharedRecordCommand, SharedWaitCommand,
                 ChildCommand, ConditionalCommand, SetConditionsCommand, EmptyCommand>;

// ---- streams, events, graphs ------------------------------------------------------------------------------

struct Stream {
  Context* context = nullptr;
  unsigned flags = 0;
  int priority = 0;
  uint64_t id = 0;
  bool legacy = false;
  std::shared_ptr<GreenContext> green;   // its kernels run on that part of the device; null: on all of it
  std::shared_ptr<HardwareQueue> queue;  // null: of a graph's body, which the device launches
  // All below: guarded by Context::mutex.
  bool orphan = false;  // destroyed while it held work
  OpRef tail;           // last operation that later ones wait for; null or complete = idle
  // Last marker: an event record, or a write into host memory. Markers wait for the tail and for each other;
  // later operations do not wait for them (a marker's write runs on a host thread, and the modelled device
  // must not stand still until that thread has woken up), except those that may see the memory, by `marked`.
  OpRef marker;
  std::vector<std::pair<uint64_t, uint64_t>>
      marked;                        // host allocations [begin, end) that pending markers write
  std::shared_ptr<Capture> capture;  // open capture this stream belongs to
  std::vector<Node*> frontier;       // last nodes of this stream in the capture

  bool blocking() const { return !(flags & CU_STREAM_NON_BLOCKING); }
};

struct Event {
  Context* context = nullptr;
  unsigned flags = 0;
  std::shared_ptr<SharedEvent> shared;  // interprocess events only
  std::mutex mutex;                     // guards all below; innermost
  OpRef op;                             // last record; null = never recorded
  bool recorded = false;
  std::shared_ptr<Capture> capture;  // last record was inside this capture
  uint64_t number = 0;               // of `op` among the records of `shared`
  std::vector<Node*> frontier;
};

struct Node {
  Graph* graph = nullptr;
  Command command;
  std::vector<Node*> deps;
  bool enabled = true;
  Node* origin = nullptr;       // in a clone or executable graph: the node it was made from (identity only)
  CUcontext context = nullptr;  // of a copy or fill: given or captured with it (identity only)
};

struct Graph {
  mutable std::recursive_mutex mutex;        // guards nodes
  std::vector<std::unique_ptr<Node>> nodes;  // in order of creation; explicit edges may point forward
  std::shared_ptr<Capture> owner_capture;    // while a capture builds it
  std::vector<std::shared_ptr<UserHold>> user_objects;
  std::vector<std::shared_ptr<Condition>> conditions;  // made for this graph
};

// References of a graph, and of what was made from it, to an object of the program.
struct UserObject {
  void* pointer = nullptr;
  CUhostFn destroy = nullptr;
  std::atomic<int64_t> references{0};
  void release(int64_t n);  // calls destroy with the last one
};
struct UserHold {
  std::shared_ptr<UserObject> object;
  unsigned count = 0;
  ~UserHold() {
    if (object && count) object->release(count);
  }
};

struct GraphExec {
  std::shared_ptr<Graph> graph;  // private copy
  unsigned long long flags = 0;
  Context* context = nullptr;
  OpRef last;  // guarded by Context::mutex of the launching context: runs one at a time
};

struct Capture {
  uint64_t id = 0;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  uint64_t thread = 0;  // that began it
  Stream* origin = nullptr;
  std::atomic<bool> invalidated{false};
  std::shared_ptr<Graph> graph;
  bool to_existing_graph = false;
  std::vector<std::shared_ptr<Stream>> streams;  // joined, origin first; guarded by Context::mutex
};

// ---- context ----------------------------------------------------------------------------------------------

struct Context : std::enable_shared_from_this<Context> {
  uint64_t id = 0;
  CUdevice device = 0;
  unsigned api_version = 13000;
  bool primary = false;
  std::shared_ptr<GreenContext> green;  // this is the face of one; work goes to its base
  std::atomic<unsigned> flags{0};
  std::atomic<bool> destroyed{false};
  std::atomic<unsigned> usage{1};  // cuCtxAttach
  // Functional clock: bodies see a fault at once and do nothing more. Modelled clock: callers see it when the
  // faulty operation is complete.
  std::atomic<int> poisoned{0};
  std::atomic<int> error{0};
  std::atomic<bool> cancel{false};  // polled by running kernels: set at destruction and process exit

  std::mutex mutex;                          // guards streams, their tails and captures, and the two below
  unsigned n_barring = 0;                    // calls that wait and let no launch pass meanwhile
  std::condition_variable launches_allowed;  // n_barring is 0 again
  std::vector<std::shared_ptr<HardwareQueue>> queues;  // constant; streams take them in turn
  std::atomic<uint64_t> n_streams{0};                  // ever made, for that
  std::shared_ptr<Stream> legacy;
  std::vector<std::shared_ptr<Stream>> streams;                      // all but legacy
  std::unordered_map<uint64_t, std::shared_ptr<Stream>> per_thread;  // by thread number
  unsigned n_blocking_captures = 0;  // open captures that a blocking stream takes part in
  std::set<uint64_t> peers;  // ids of contexts whose memory this one may touch (cuCtxEnablePeerAccess)

  std::array<std::atomic<size_t>, CU_LIMIT_MAX> limits{};
  std::atomic<int> cache_config{0}, shared_config{0};
};

}  // namespace tessera::softgpu::driver
