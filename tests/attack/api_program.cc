#include "tests/attack/api_program.h"

#include <cuda.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <vector>

namespace tessera::attack {
namespace {

constexpr char kPtx[] = R"(
.version 8.0
.target sm_75
.address_size 64

// y[i] = value + i
.visible .entry count(.param .u64 y, .param .u32 n, .param .u32 value)
{
  .reg .pred %p; .reg .b32 %r<8>; .reg .b64 %d<4>;
  ld.param.u64 %d1, [y]; ld.param.u32 %r1, [n]; ld.param.u32 %r2, [value];
  mov.u32 %r3, %ctaid.x; mov.u32 %r4, %ntid.x; mov.u32 %r5, %tid.x; mad.lo.u32 %r3, %r3, %r4, %r5;
  setp.ge.u32 %p, %r3, %r1; @%p bra DONE;
  mul.wide.u32 %d2, %r3, 4; add.u64 %d1, %d1, %d2; add.u32 %r2, %r2, %r3; st.global.u32 [%d1], %r2;
DONE: ret;
}
// `rounds` times: y[i] = y[i] * 1664525 + x[i]
.visible .entry mix(.param .u64 y, .param .u32 n, .param .u64 x, .param .u32 rounds)
{
  .reg .pred %p; .reg .b32 %r<10>; .reg .b64 %d<5>;
  ld.param.u64 %d1, [y]; ld.param.u64 %d2, [x]; ld.param.u32 %r1, [n]; ld.param.u32 %r2, [rounds];
  mov.u32 %r3, %ctaid.x; mov.u32 %r4, %ntid.x; mov.u32 %r5, %tid.x; mad.lo.u32 %r3, %r3, %r4, %r5;
  setp.ge.u32 %p, %r3, %r1; @%p bra DONE;
  mul.wide.u32 %d3, %r3, 4; add.u64 %d1, %d1, %d3; add.u64 %d2, %d2, %d3;
  ld.global.u32 %r6, [%d1]; ld.global.u32 %r7, [%d2];
LOOP: mad.lo.u32 %r6, %r6, 1664525, %r7; sub.u32 %r2, %r2, 1; setp.ne.u32 %p, %r2, 0; @%p bra LOOP;
  st.global.u32 [%d1], %r6;
DONE: ret;
}
// y[i % 16] += sum of x; by a sum in shared memory for each block
.visible .entry sum(.param .u64 y, .param .u32 n, .param .u64 x)
{
  .reg .pred %p<3>; .reg .b32 %r<10>; .reg .b64 %d<5>; .shared .align 4 .b32 s;
  ld.param.u64 %d1, [y]; ld.param.u64 %d2, [x]; ld.param.u32 %r1, [n];
  mov.u32 %r3, %ctaid.x; mov.u32 %r4, %ntid.x; mov.u32 %r5, %tid.x; mad.lo.u32 %r6, %r3, %r4, %r5;
  setp.ne.u32 %p1, %r5, 0; @!%p1 st.shared.u32 [s], 0; bar.sync 0;
  setp.ge.u32 %p2, %r6, %r1; @%p2 bra MEET;
  mul.wide.u32 %d3, %r6, 4; add.u64 %d2, %d2, %d3; ld.global.u32 %r7, [%d2]; red.shared.add.u32 [s], %r7;
MEET: bar.sync 0; @%p1 bra DONE;
  ld.shared.u32 %r7, [s]; and.b32 %r3, %r3, 15; mul.wide.u32 %d3, %r3, 4; add.u64 %d1, %d1, %d3;
  red.global.add.u32 [%d1], %r7;
DONE: ret;
}
)";

struct Array {
  CUdeviceptr address = 0;
  bool host = false, pooled = false;
  size_t mapped_bytes = 0;  // not 0: physical memory at an address
  unsigned graphs = 0;      // that use it
  std::vector<uint32_t> model;
  std::map<size_t, bool> users;  // by stream: work that may still run; true: it writes
  CUdeviceptr at(size_t word) const { return address + word * 4; }
};
struct Access {
  Array* array;
  bool writes;
};
// A call that works on a stream, now or in a graph.
struct Work {
  std::string text;
  std::vector<Access> accesses;
  std::function<CUresult(CUstream)> call;
  std::function<void()> model;
  // Changes a kernel that fills, to another value, in an executable graph. Returns the model.
  std::function<std::pair<CUresult, std::function<void()>>(CUgraphExec, CUgraphNode, uint32_t value)> change =
      {};
};
struct HostWork {
  uint32_t* words;
  size_t n;
  uint32_t factor;
};
struct RecordedNode {
  CUgraphNode node = nullptr;
  Work work;  // as captured
  bool enabled = true;
  std::function<void()> changed;  // its model since it got other parameters
};
struct RecordedGraph {
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  std::vector<Access> accesses;
  std::vector<RecordedNode> nodes;
  bool fixed = false;  // it allocates, or decides: no other graph may have it inside, and it is not changed

  std::vector<std::function<void()>> models() const {  // of what a launch does now
    std::vector<std::function<void()>> all;
    for (const RecordedNode& n : nodes)
      if (n.enabled) all.push_back(n.changed ? n.changed : n.work.model);
    return all;
  }
};
constexpr char kGraphLaunch[] = "cuGraphLaunch", kHostFunction[] = "cuLaunchHostFunc",
               kTemporary[] = "copy by temporary memory";
constexpr size_t kFlags = 4096;

class ApiProgram {
 public:
  explicit ApiProgram(uint64_t seed) : random_(seed) {}
  void run();

 private:
  uint32_t below(uint32_t n) { return static_cast<uint32_t>(random_() % n); }
  bool one_in(uint32_t n) { return below(n) == 0; }
  void must(CUresult result, const char* call) {
    log_.push_back(call);
    if (result != CUDA_SUCCESS) fail(std::string(call) + " answers " + std::to_string(result));
  }
  [[noreturn]] void fail(const std::string& what) const {
    std::string text = what + " after:";
    const size_t first = log_.size() > 80 ? log_.size() - 80 : 0;
    for (size_t i = first; i < log_.size(); ++i) text += "\n  " + log_[i];
    throw Wrong(text);
  }

  Array* any(bool host, const Array* but = nullptr);
  Array* make_array(size_t n, bool host);
  Work random_work();
  Work kernel();
  Work copy();
  Work temporary();
  Work host_function(bool as_callback);
  CUfunction some(CUfunction plain, CUkernel of_library) {
    return one_in(3) ? reinterpret_cast<CUfunction>(of_library) : plain;
  }
  Work launch_of(const RecordedGraph& graph);
  void order(size_t stream, const std::vector<Access>& accesses);
  void wait(size_t stream, size_t for_stream);
  void issue(size_t stream, const Work& work);
  void synchronise();
  void done(size_t stream);
  void check(Array& array);
  void allocate();
  void release();
  void record_graph();
  void join_graphs();
  void change_graph();
  void launch_graph();
  void deciding_graph();
  void forget_graph(size_t which);
  void change_streams();
  void make_green_stream(size_t stream);
  void guest_module();
  void other_context();
  void other_process();
  void rarer();

  std::mt19937_64 random_;
  std::vector<std::string> log_;
  std::vector<std::unique_ptr<Array>> arrays_;
  std::vector<CUstream> streams_;        // null: destroyed
  std::vector<bool> blocking_;           // on the legacy stream
  std::map<size_t, CUgreenCtx> greens_;  // by stream
  CUdeviceptr flags_ = 0;
  uint32_t flags_used_ = 0;
  CUmemoryPool pool_ = nullptr;
  CUlibrary library_ = nullptr;
  CUkernel library_mix_ = nullptr, library_sum_ = nullptr;
  int dynamic_bytes_ = 16 << 10;  // that a launch of mix_ may have
  std::vector<CUevent> events_;
  std::deque<HostWork> host_work_;  // stays where it is
  std::vector<RecordedGraph> graphs_;
  CUmodule module_ = nullptr;
  CUfunction count_ = nullptr, mix_ = nullptr, sum_ = nullptr;
};

Array* ApiProgram::any(bool host, const Array* but) {
  std::vector<Array*> those;
  for (const auto& a : arrays_)
    if (a->host == host && a.get() != but) those.push_back(a.get());
  return those[below(static_cast<uint32_t>(those.size()))];
}

Array* ApiProgram::make_array(size_t n, bool host) {
  auto made = std::make_unique<Array>();
  made->host = host;
  made->model.resize(n);
  if (host) {
    void* p = nullptr;
    must(cuMemHostAlloc(&p, n * 4, CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_PORTABLE), "cuMemHostAlloc");
    made->address = reinterpret_cast<uint64_t>(p);
    for (size_t i = 0; i < n; ++i)
      made->model[i] = static_cast<uint32_t*>(p)[i] = static_cast<uint32_t>(random_());
  } else {
    if (one_in(4))
      must(cuMemAllocManaged(&made->address, n * 4, CU_MEM_ATTACH_GLOBAL), "cuMemAllocManaged");
    else
      must(cuMemAlloc(&made->address, n * 4), "cuMemAlloc");
    for (uint32_t& word : made->model) word = static_cast<uint32_t>(random_());
    must(cuMemcpyHtoD(made->address, made->model.data(), n * 4), "cuMemcpyHtoD");
  }
  arrays_.push_back(std::move(made));
  return arrays_.back().get();
}

Work ApiProgram::kernel() {
  Array* y = any(false);
  Array* x = any(one_in(4), y);  // host memory now and then
  const uint32_t block = 32 * (1 + below(8));
  const uint32_t which = below(3), value = static_cast<uint32_t>(random_());
  const uint32_t rounds = one_in(6) ? 200 : 1 + below(8);
  const uint32_t n =
      1 +
      below(static_cast<uint32_t>(which == 0 ? y->model.size() : std::min(x->model.size(), y->model.size())));
  const uint32_t grid = (n + block - 1) / block + below(3);
  const uint32_t how = which == 0 ? 0 : below(10),
                 shared = which == 1 ? 4 * below(uint32_t(dynamic_bytes_) / 4) : 0;
  const auto launch = [=](CUfunction f, auto... more) {
    return [=](CUstream s) {
      CUdeviceptr to = y->address;
      uint32_t size = n;
      std::tuple values(more...);
      return std::apply(
          [&](auto&... each) {
            void* params[] = {&to, &size, &each..., nullptr};
            if (how == 1 && grid <= 4)
              return cuLaunchCooperativeKernel(f, grid, 1, 1, block, 1, 1, 0, s, params);
            if (how < 2 || how > 5)
              return cuLaunchKernel(f, grid, 1, 1, block, 1, 1, how == 6 ? shared : 0, s, params, nullptr);
            CUlaunchAttribute attribute{};
            if (how == 2) attribute.id = CU_LAUNCH_ATTRIBUTE_PRIORITY, attribute.value.priority = -1;
            if (how == 3) attribute.id = CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN;
            if (how == 4) {
              attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
              attribute.value.programmaticStreamSerializationAllowed = 1;
            }
            CUlaunchConfig config{};
            config.gridDimX = grid, config.blockDimX = block, config.hStream = s;
            config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1;
            config.attrs = &attribute, config.numAttrs = how != 5;
            return cuLaunchKernelEx(&config, f, params, nullptr);
          },
          values);
    };
  };
  const std::string shape = " n " + std::to_string(n) + " grid " + std::to_string(grid) + " block " +
                            std::to_string(block) + " by way " + std::to_string(how);
  if (which == 0) {
    const auto fill = [=](uint32_t from) {
      return [=] {
        for (uint32_t i = 0; i < n; ++i) y->model[i] = from + i;
      };
    };
    const auto change = [=, f = count_](CUgraphExec exec, CUgraphNode node, uint32_t other) {
      CUdeviceptr to = y->address;
      uint32_t size = n;
      void* values[] = {&to, &size, &other};
      CUDA_KERNEL_NODE_PARAMS params = {};
      params.func = f, params.kernelParams = values;
      params.gridDimX = grid, params.blockDimX = block;
      params.gridDimY = params.gridDimZ = params.blockDimY = params.blockDimZ = 1;
      return std::pair<CUresult, std::function<void()>>{cuGraphExecKernelNodeSetParams(exec, node, &params),
                                                        fill(other)};
    };
    return {"kernel count" + shape, {{y, true}}, launch(count_, value), fill(value), change};
  }
  if (which == 1)
    return {"kernel mix" + shape + " rounds " + std::to_string(rounds),
            {{y, true}, {x, false}},
            launch(some(mix_, library_mix_), CUdeviceptr{x->address}, rounds),
            [=] {
              for (uint32_t i = 0; i < n; ++i)
                for (uint32_t k = 0; k < rounds; ++k) y->model[i] = y->model[i] * 1664525 + x->model[i];
            }};
  return {"kernel sum" + shape,
          {{y, true}, {x, false}},
          launch(some(sum_, library_sum_), CUdeviceptr{x->address}),
          [=] {
            for (uint32_t i = 0; i < n; ++i) y->model[i / block % 16] += x->model[i];
          }};
}

Work ApiProgram::copy() {
  const bool from_host = one_in(3), to_host = !from_host && one_in(2);
  Array* to = any(to_host);
  Array* from = any(from_host, to);
  const uint32_t most = static_cast<uint32_t>(std::min(to->model.size(), from->model.size()));
  if (one_in(3)) {  // rows with gaps
    const uint32_t width = 1 + below(8), pitch = width + below(5), rows = 1 + below(most / 16);
    const uint32_t used = (rows - 1) * pitch + width;
    if (used <= most)
      return {"cuMemcpy2DAsync",
              {{to, true}, {from, false}},
              [=](CUstream s) {
                CUDA_MEMCPY2D c = {};
                c.srcMemoryType = from->host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
                c.srcHost = reinterpret_cast<void*>(from->address), c.srcDevice = from->address;
                c.dstMemoryType = to->host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
                c.dstHost = reinterpret_cast<void*>(to->address), c.dstDevice = to->address;
                c.srcPitch = c.dstPitch = pitch * 4, c.WidthInBytes = width * 4, c.Height = rows;
                return cuMemcpy2DAsync(&c, s);
              },
              [=] {
                for (uint32_t r = 0; r < rows; ++r)
                  for (uint32_t i = 0; i < width; ++i) to->model[r * pitch + i] = from->model[r * pitch + i];
              }};
  }
  const uint32_t n = 1 + below(most), at = below(static_cast<uint32_t>(to->model.size()) - n + 1),
                 origin = below(static_cast<uint32_t>(from->model.size()) - n + 1);
  const bool typed = one_in(2);
  return {"copy of " + std::to_string(n) + " words",
          {{to, true}, {from, false}},
          [=](CUstream s) {
            auto* source = reinterpret_cast<void*>(from->at(origin));
            if (!typed) return cuMemcpyAsync(to->at(at), from->at(origin), n * 4, s);
            if (from->host) return cuMemcpyHtoDAsync(to->at(at), source, n * 4, s);
            if (to->host)
              return cuMemcpyDtoHAsync(reinterpret_cast<void*>(to->at(at)), from->at(origin), n * 4, s);
            return cuMemcpyDtoDAsync(to->at(at), from->at(origin), n * 4, s);
          },
          [=] { std::copy_n(from->model.begin() + origin, n, to->model.begin() + at); }};
}

Work ApiProgram::random_work() {
  const uint32_t choice = below(10);
  if (one_in(12)) return temporary();
  if (choice < 4) return kernel();
  if (choice < 7) return copy();
  if (choice < 9) {
    Array* to = any(false);
    const uint32_t n = 1 + below(static_cast<uint32_t>(to->model.size())),
                   value = static_cast<uint32_t>(random_()),
                   at = below(static_cast<uint32_t>(to->model.size()) - n + 1);
    const bool bytes = one_in(3);
    return {"fill of " + std::to_string(n) + " words",
            {{to, true}},
            [=](CUstream s) {
              return bytes ? cuMemsetD8Async(to->at(at), static_cast<unsigned char>(value), n * 4, s)
                           : cuMemsetD32Async(to->at(at), value, n, s);
            },
            [=] { std::fill_n(to->model.begin() + at, n, bytes ? (value & 0xff) * 0x01010101u : value); }};
  }
  return host_function(false);
}

// Its memory is allocated and freed in the order of the stream, or by a graph.
Work ApiProgram::temporary() {
  Array* to = any(false);
  Array* from = any(false, to);
  const uint32_t n = 1 + below(static_cast<uint32_t>(std::min(to->model.size(), from->model.size())));
  return {kTemporary,
          {{to, true}, {from, false}},
          [=](CUstream s) {
            CUdeviceptr between = 0;
            CUresult result = cuMemAllocAsync(&between, n * 4, s);
            if (result == CUDA_SUCCESS) result = cuMemcpyDtoDAsync(between, from->address, n * 4, s);
            if (result == CUDA_SUCCESS) result = cuMemcpyDtoDAsync(to->address, between, n * 4, s);
            return result == CUDA_SUCCESS ? cuMemFreeAsync(between, s) : result;
          },
          [=] { std::copy_n(from->model.begin(), n, to->model.begin()); }};
}

Work ApiProgram::host_function(bool as_callback) {
  Array* h = any(true);
  HostWork& work = host_work_.emplace_back(HostWork{reinterpret_cast<uint32_t*>(h->address), h->model.size(),
                                                    static_cast<uint32_t>(random_()) | 1});
  const auto apply = [](uint32_t* words, size_t n, uint32_t factor) {
    for (size_t i = 0; i < n; ++i) words[i] = words[i] * factor + 1;
  };
  return {kHostFunction,
          {{h, true}},
          [&work, as_callback](CUstream s) {
            if (as_callback)
              return cuStreamAddCallback(
                  s,
                  [](CUstream, CUresult, void* data) {
                    const auto& w = *static_cast<HostWork*>(data);
                    for (size_t i = 0; i < w.n; ++i) w.words[i] = w.words[i] * w.factor + 1;
                  },
                  &work, 0);
            return cuLaunchHostFunc(
                s,
                [](void* data) {
                  const auto& w = *static_cast<HostWork*>(data);
                  for (size_t i = 0; i < w.n; ++i) w.words[i] = w.words[i] * w.factor + 1;
                },
                &work);
          },
          [=, factor = work.factor] { apply(h->model.data(), h->model.size(), factor); }};
}

void ApiProgram::wait(size_t stream, size_t for_stream) {
  if ((stream == 0 && blocking_[for_stream]) || (for_stream == 0 && blocking_[stream]))
    if (one_in(2)) return;  // the legacy stream and it wait for each other anyway
  if (one_in(5) && flags_used_ < kFlags) {
    const CUdeviceptr flag = flags_ + 4 * flags_used_++;
    must(cuStreamWriteValue32(streams_[for_stream], flag, 7, 0), "cuStreamWriteValue32");
    return must(cuStreamWaitValue32(streams_[stream], flag, 7, CU_STREAM_WAIT_VALUE_GEQ),
                "cuStreamWaitValue32");
  }
  if (events_.size() < 24) {
    CUevent e;
    must(cuEventCreate(&e, one_in(2) ? CU_EVENT_DISABLE_TIMING : CU_EVENT_DEFAULT), "cuEventCreate");
    events_.push_back(e);
  }
  CUevent e = events_[below(static_cast<uint32_t>(events_.size()))];
  must(cuEventRecord(e, streams_[for_stream]), "cuEventRecord");
  must(cuStreamWaitEvent(streams_[stream], e, 0), "cuStreamWaitEvent");
}

void ApiProgram::order(size_t stream, const std::vector<Access>& accesses) {
  std::map<size_t, bool> waits;
  for (const Access& a : accesses)
    for (const auto& [user, wrote] : a.array->users)
      if (user != stream && (a.writes || wrote)) waits[user] = true;
  for (const auto& [user, yes] : waits) wait(stream, user);
  for (const Access& a : accesses) {
    if (a.writes) a.array->users.clear();
    a.array->users[stream] |= a.writes;
  }
}

void ApiProgram::issue(size_t stream, const Work& work) {
  order(stream, work.accesses);
  must(work.call(streams_[stream]), (work.text + " on stream " + std::to_string(stream)).c_str());
  work.model();
}

void ApiProgram::done(size_t stream) {
  for (const auto& a : arrays_) a->users.erase(stream);
}

void ApiProgram::synchronise() {
  const size_t s = below(static_cast<uint32_t>(streams_.size()));
  if (one_in(3)) {
    must(cuCtxSynchronize(), "cuCtxSynchronize");
    for (const auto& a : arrays_) a->users.clear();
  } else if (streams_[s]) {
    if (one_in(3)) {
      CUevent e;
      must(cuEventCreate(&e, CU_EVENT_BLOCKING_SYNC), "cuEventCreate");
      must(cuEventRecord(e, streams_[s]), "cuEventRecord");
      const CUresult answer = cuEventQuery(e);
      if (answer != CUDA_SUCCESS && answer != CUDA_ERROR_NOT_READY) must(answer, "cuEventQuery");
      must(cuEventSynchronize(e), "cuEventSynchronize");
      must(cuEventDestroy(e), "cuEventDestroy");
    } else {
      must(cuStreamSynchronize(streams_[s]), "cuStreamSynchronize");
      must(cuStreamQuery(streams_[s]), "cuStreamQuery");
    }
    done(s);
  }
}

void ApiProgram::check(Array& array) {
  for (const auto& [user, wrote] : array.users)
    if (array.host || wrote) must(cuStreamSynchronize(streams_[user]), "cuStreamSynchronize");
  std::vector<uint32_t> got(array.model.size());
  if (array.host)
    std::copy_n(reinterpret_cast<const uint32_t*>(array.address), got.size(), got.begin());
  else
    must(cuMemcpyDtoH(got.data(), array.address, got.size() * 4), "cuMemcpyDtoH");
  const auto [a, b] = std::mismatch(got.begin(), got.end(), array.model.begin());
  if (a != got.end())
    fail(std::string(array.host ? "host" : "device") + " array of " + std::to_string(got.size()) +
         " words: word " + std::to_string(a - got.begin()) + " is " + std::to_string(*a) + ", should be " +
         std::to_string(*b));
}

void ApiProgram::allocate() {
  const size_t s = below(static_cast<uint32_t>(streams_.size()));
  if (!streams_[s] || arrays_.size() > 14) return;
  auto made = std::make_unique<Array>();
  made->pooled = true;
  const uint32_t n = 16 + below(3000), value = static_cast<uint32_t>(random_());
  if (one_in(4)) {
    CUmemAllocationProp prop{};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    size_t piece = 0;
    must(cuMemGetAllocationGranularity(&piece, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
         "cuMemGetAllocationGranularity");
    made->mapped_bytes = piece;  // more than n words
    CUmemGenericAllocationHandle memory = 0;
    CUmemAccessDesc access{prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    must(cuMemCreate(&memory, piece, &prop, 0), "cuMemCreate");
    must(cuMemAddressReserve(&made->address, piece, 0, 0, 0), "cuMemAddressReserve");
    must(cuMemMap(made->address, piece, 0, memory, 0), "cuMemMap");
    must(cuMemRelease(memory), "cuMemRelease");
    must(cuMemSetAccess(made->address, piece, &access, 1), "cuMemSetAccess");
  } else if (one_in(3)) {
    must(cuMemAllocFromPoolAsync(&made->address, n * 4, pool_, streams_[s]), "cuMemAllocFromPoolAsync");
  } else {
    must(cuMemAllocAsync(&made->address, n * 4, streams_[s]), "cuMemAllocAsync");
  }
  must(cuMemsetD32Async(made->address, value, n, streams_[s]), "cuMemsetD32Async");
  made->model.assign(n, value);
  made->users[s] = true;
  arrays_.push_back(std::move(made));
}

void ApiProgram::release() {
  const size_t s = below(static_cast<uint32_t>(streams_.size()));
  const auto it =
      std::find_if(arrays_.begin(), arrays_.end(), [](const auto& a) { return a->pooled && a->graphs == 0; });
  if (!streams_[s] || it == arrays_.end()) return;
  if (one_in(2)) check(**it);
  if ((*it)->mapped_bytes) {
    for (const auto& [user, wrote] : (*it)->users)
      must(cuStreamSynchronize(streams_[user]), "cuStreamSynchronize");
    must(cuMemUnmap((*it)->address, (*it)->mapped_bytes), "cuMemUnmap");
    must(cuMemAddressFree((*it)->address, (*it)->mapped_bytes), "cuMemAddressFree");
  } else {
    order(s, {{it->get(), true}});
    must(cuMemFreeAsync((*it)->address, streams_[s]), "cuMemFreeAsync");
  }
  arrays_.erase(it);
  if (one_in(4)) must(cuMemPoolTrimTo(pool_, 0), "cuMemPoolTrimTo");
}

// Two streams are captured: the second forks off, and joins again.
void ApiProgram::record_graph() {
  if (graphs_.size() > 5) return;
  CUstream origin, fork;
  CUevent forked, joined;
  must(cuStreamCreate(&origin, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  must(cuStreamCreate(&fork, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  must(cuEventCreate(&forked, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
  must(cuEventCreate(&joined, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
  std::vector<Work> works;
  for (uint32_t n = 1 + below(6); n; --n) {
    const RecordedGraph* inside =
        graphs_.empty() || !one_in(8) ? nullptr : &graphs_[below(static_cast<uint32_t>(graphs_.size()))];
    works.push_back(inside && !inside->fixed ? launch_of(*inside) : random_work());
  }
  RecordedGraph made;
  const auto mode = static_cast<CUstreamCaptureMode>(below(3));
  if (one_in(4)) {
    must(cuGraphCreate(&made.graph, 0), "cuGraphCreate");
    must(cuStreamBeginCaptureToGraph(origin, made.graph, nullptr, nullptr, 0, mode),
         "cuStreamBeginCaptureToGraph");
  } else {
    must(cuStreamBeginCapture(origin, mode), "cuStreamBeginCapture");
  }
  bool open = false;  // the fork has work that the origin does not wait for
  std::vector<Access> beside;
  for (const Work& w : works) {
    const auto clash = [&](const Access& a) {
      return std::any_of(beside.begin(), beside.end(),
                         [&](const Access& b) { return a.array == b.array && (a.writes || b.writes); });
    };
    const bool on_fork = one_in(3);
    if (on_fork) {  // behind all that the origin has
      must(cuEventRecord(forked, origin), "cuEventRecord");
      must(cuStreamWaitEvent(fork, forked, 0), "cuStreamWaitEvent");
    } else if (open && std::any_of(w.accesses.begin(), w.accesses.end(), clash)) {
      must(cuEventRecord(joined, fork), "cuEventRecord");
      must(cuStreamWaitEvent(origin, joined, 0), "cuStreamWaitEvent");
      open = false;
      beside.clear();
    }
    must(w.call(on_fork ? fork : origin), ("captured: " + w.text).c_str());
    CUstreamCaptureStatus status;
    const CUgraphNode* latest = nullptr;
    size_t n_latest = 0;
    must(cuStreamGetCaptureInfo(on_fork ? fork : origin, &status, nullptr, nullptr, &latest, nullptr,
                                &n_latest),
         "cuStreamGetCaptureInfo");
    made.nodes.push_back({.node = *latest, .work = w});
    made.fixed |= w.text == kTemporary;
    if (on_fork) {
      open = true;
      beside.insert(beside.end(), w.accesses.begin(), w.accesses.end());
    }
    for (const Access& a : w.accesses) {
      made.accesses.push_back({a.array, true});
      ++a.array->graphs;
    }
  }
  if (open) {
    must(cuEventRecord(joined, fork), "cuEventRecord");
    must(cuStreamWaitEvent(origin, joined, 0), "cuStreamWaitEvent");
  }
  must(cuStreamEndCapture(origin, &made.graph), "cuStreamEndCapture");
  if (!made.fixed && one_in(5)) {  // of a copy
    const CUgraph original = made.graph;
    must(cuGraphClone(&made.graph, original), "cuGraphClone");
    must(cuGraphDestroy(original), "cuGraphDestroy");
    for (RecordedNode& n : made.nodes) n.node = nullptr;
  }
  must(cuGraphInstantiate(&made.exec, made.graph,
                          one_in(3) ? CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY : 0),
       "cuGraphInstantiate");
  must(cuStreamDestroy(origin), "cuStreamDestroy");
  must(cuStreamDestroy(fork), "cuStreamDestroy");
  must(cuEventDestroy(forked), "cuEventDestroy");
  must(cuEventDestroy(joined), "cuEventDestroy");
  graphs_.push_back(std::move(made));
}

// Captured, it is what it is now, with nodes left out and other parameters.
Work ApiProgram::launch_of(const RecordedGraph& graph) {
  return {kGraphLaunch, graph.accesses, [exec = graph.exec](CUstream s) { return cuGraphLaunch(exec, s); },
          [models = graph.models()] {
            for (const auto& model : models) model();
          }};
}

// A graph of two graphs, one behind the other.
void ApiProgram::join_graphs() {
  if (graphs_.size() < 2 || graphs_.size() > 7) return;
  RecordedGraph made;
  must(cuGraphCreate(&made.graph, 0), "cuGraphCreate");
  CUgraphNode before = nullptr;
  for (int i = 0; i < 2; ++i) {
    const RecordedGraph& part = graphs_[below(static_cast<uint32_t>(graphs_.size()))];
    if (part.fixed) continue;
    CUgraphNode node;
    must(cuGraphAddChildGraphNode(&node, made.graph, &before, before ? 1 : 0, part.graph),
         "cuGraphAddChildGraphNode");
    before = node;
    for (const RecordedNode& n : part.nodes) made.nodes.push_back({.work = n.work});
    made.accesses.insert(made.accesses.end(), part.accesses.begin(), part.accesses.end());
  }
  for (const Access& a : made.accesses) ++a.array->graphs;
  must(cuGraphInstantiate(&made.exec, made.graph, 0), "cuGraphInstantiate");
  graphs_.push_back(std::move(made));
}

// Nodes of an executable graph get other parameters, are left out, or become as they were.
void ApiProgram::change_graph() {
  if (graphs_.empty()) return;
  RecordedGraph& g = graphs_[below(static_cast<uint32_t>(graphs_.size()))];
  if (g.fixed) return;
  for (RecordedNode& n : g.nodes) {
    const uint32_t value = static_cast<uint32_t>(random_());
    if (n.node && n.work.change && one_in(2)) {
      auto [result, model] = n.work.change(g.exec, n.node, value);
      must(result, "cuGraphExecKernelNodeSetParams");
      n.changed = model;
    }
    if (n.node && n.work.text != kHostFunction && n.work.text != kGraphLaunch && one_in(4)) {
      n.enabled = !n.enabled;
      must(cuGraphNodeSetEnabled(g.exec, n.node, n.enabled), "cuGraphNodeSetEnabled");
    }
  }
  if (!one_in(3)) return;
  CUgraphExecUpdateResultInfo info;
  must(cuGraphExecUpdate(g.exec, g.graph, &info), "cuGraphExecUpdate");
  for (RecordedNode& n : g.nodes) n.changed = nullptr;
}

void ApiProgram::launch_graph() {
  const size_t s = below(static_cast<uint32_t>(streams_.size()));
  if (graphs_.empty() || !streams_[s]) return;
  const size_t which = below(static_cast<uint32_t>(graphs_.size()));
  RecordedGraph& g = graphs_[which];
  order(s, g.accesses);
  if (one_in(8)) must(cuGraphUpload(g.exec, streams_[s]), "cuGraphUpload");
  for (uint32_t times = 1 + below(3); times; --times) {
    must(cuGraphLaunch(g.exec, streams_[s]), ("cuGraphLaunch on stream " + std::to_string(s)).c_str());
    for (const auto& model : g.models()) model();
  }
  if (one_in(5)) forget_graph(which);  // its work goes on
}

void ApiProgram::forget_graph(size_t which) {
  RecordedGraph& g = graphs_[which];
  must(cuGraphExecDestroy(g.exec), "cuGraphExecDestroy");
  must(cuGraphDestroy(g.graph), "cuGraphDestroy");
  for (const Access& a : g.accesses) --a.array->graphs;
  graphs_.erase(graphs_.begin() + static_cast<std::ptrdiff_t>(which));
}

// A graph that fills or does not, by a value that each launch begins with.
void ApiProgram::deciding_graph() {
  if (graphs_.size() > 5) return;
  Array* y = any(false);
  const bool does = one_in(2);
  CUdeviceptr to = y->address;
  uint32_t n = 1 + below(static_cast<uint32_t>(y->model.size())), value = static_cast<uint32_t>(random_());
  RecordedGraph made;
  made.fixed = true;
  CUgraphConditionalHandle handle = 0;
  CUcontext context = nullptr;
  must(cuCtxGetCurrent(&context), "cuCtxGetCurrent");
  must(cuGraphCreate(&made.graph, 0), "cuGraphCreate");
  must(cuGraphConditionalHandleCreate(&handle, made.graph, context, does, CU_GRAPH_COND_ASSIGN_DEFAULT),
       "cuGraphConditionalHandleCreate");
  CUgraphNodeParams decision{};
  decision.type = CU_GRAPH_NODE_TYPE_CONDITIONAL;
  decision.conditional.handle = handle;
  decision.conditional.type = CU_GRAPH_COND_TYPE_IF;
  decision.conditional.size = 1;
  decision.conditional.ctx = context;
  CUgraphNode node = nullptr;
  must(cuGraphAddNode(&node, made.graph, nullptr, nullptr, 0, &decision), "cuGraphAddNode");
  CUDA_KERNEL_NODE_PARAMS kernel{};
  void* params[] = {&to, &n, &value};
  kernel.func = count_, kernel.kernelParams = params;
  kernel.blockDimX = 64, kernel.gridDimX = n / 64 + 1;
  kernel.gridDimY = kernel.gridDimZ = kernel.blockDimY = kernel.blockDimZ = 1;
  must(cuGraphAddKernelNode(&node, decision.conditional.phGraph_out[0], nullptr, 0, &kernel),
       "cuGraphAddKernelNode");
  must(cuGraphInstantiate(&made.exec, made.graph, 0), "cuGraphInstantiate");
  const auto fill = [=] {
    for (uint32_t i = 0; does && i < n; ++i) y->model[i] = value + i;
  };
  made.accesses = {{y, true}};
  made.nodes.push_back({.work = {"kernel count if " + std::to_string(does), {}, {}, fill}});
  ++y->graphs;
  graphs_.push_back(std::move(made));
}

// Its kernel is under way, or still waits, when it goes.
void ApiProgram::guest_module() {
  const size_t s = below(static_cast<uint32_t>(streams_.size()));
  if (!streams_[s]) return;
  Array* y = any(false);
  uint32_t n = static_cast<uint32_t>(y->model.size()), value = static_cast<uint32_t>(random_());
  CUmodule module = nullptr;
  CUlibrary library = nullptr;
  CUfunction f = nullptr;
  if (one_in(2)) {
    must(cuModuleLoadData(&module, kPtx), "cuModuleLoadData");
    must(cuModuleGetFunction(&f, module, "count"), "cuModuleGetFunction");
  } else {
    CUkernel kernel = nullptr;
    must(cuLibraryLoadData(&library, kPtx, nullptr, nullptr, 0, nullptr, nullptr, 0), "cuLibraryLoadData");
    must(cuLibraryGetKernel(&kernel, library, "count"), "cuLibraryGetKernel");
    f = reinterpret_cast<CUfunction>(kernel);
  }
  order(s, {{y, true}});
  void* params[] = {&y->address, &n, &value};
  must(cuLaunchKernel(f, n / 32 + 1, 1, 1, 32, 1, 1, 0, streams_[s], params, nullptr), "guest kernel");
  must(module ? cuModuleUnload(module) : cuLibraryUnload(library), "unload");
  for (uint32_t i = 0; i < n; ++i) y->model[i] = value + i;
}

// A context of its own, which ends with or without work under way, beside all the work of this one.
void ApiProgram::other_context() {
  CUcontext mine = nullptr, other = nullptr;
  must(cuCtxGetCurrent(&mine), "cuCtxGetCurrent");
  must(cuCtxCreate(&other, nullptr, 0, 0), "cuCtxCreate");
  CUmodule module = nullptr;
  CUfunction count = nullptr;
  CUstream s = nullptr;
  CUdeviceptr y = 0;
  uint32_t n = 4096, value = static_cast<uint32_t>(random_());
  must(cuModuleLoadData(&module, kPtx), "cuModuleLoadData");
  must(cuModuleGetFunction(&count, module, "count"), "cuModuleGetFunction");
  must(cuMemAlloc(&y, n * 4), "cuMemAlloc");
  if (one_in(2)) must(cuStreamCreate(&s, CU_STREAM_DEFAULT), "cuStreamCreate");
  void* params[] = {&y, &n, &value};
  for (uint32_t times = 1 + below(4); times; --times)
    must(cuLaunchKernel(count, n / 64, 1, 1, 64, 1, 1, 0, s, params, nullptr), "kernel elsewhere");
  if (one_in(2)) {
    std::vector<uint32_t> got(n);
    must(cuCtxSynchronize(), "cuCtxSynchronize");
    must(cuMemcpyDtoH(got.data(), y, n * 4), "cuMemcpyDtoH");
    for (uint32_t i = 0; i < n; ++i)
      if (got[i] != value + i) fail("word " + std::to_string(i) + " of another context is wrong");
  }
  must(cuCtxDestroy(other), "cuCtxDestroy");
  must(cuCtxSetCurrent(mine), "cuCtxSetCurrent");
}

void ApiProgram::other_process() {
  log_.push_back("fork");
  const pid_t child = fork();
  if (child == 0) _exit(7);
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child || WEXITSTATUS(status) != 7) fail("the child fails");
}

// Its green context is the primary context's, so that there is none for another context.
void ApiProgram::make_green_stream(size_t stream) {
  CUcontext mine = nullptr, primary = nullptr;
  must(cuCtxGetCurrent(&mine), "cuCtxGetCurrent");
  must(cuDevicePrimaryCtxRetain(&primary, 0), "cuDevicePrimaryCtxRetain");
  must(cuDevicePrimaryCtxRelease(0), "cuDevicePrimaryCtxRelease");
  if (mine != primary) return;
  CUdevResource all, part;
  unsigned n = 1;
  CUdevResourceDesc description = nullptr;
  CUgreenCtx green = nullptr;
  must(cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM), "cuDeviceGetDevResource");
  must(cuDevSmResourceSplitByCount(&part, &n, &all, nullptr, 0, 1), "cuDevSmResourceSplitByCount");
  must(cuDevResourceGenerateDesc(&description, &part, 1), "cuDevResourceGenerateDesc");
  must(cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM), "cuGreenCtxCreate");
  must(cuGreenCtxStreamCreate(&streams_[stream], green, CU_STREAM_NON_BLOCKING, 0), "cuGreenCtxStreamCreate");
  greens_[stream] = green;
  blocking_[stream] = false;
}

void ApiProgram::change_streams() {
  const size_t s = below(static_cast<uint32_t>(streams_.size()));
  if (streams_[s] && streams_[s] != CU_STREAM_LEGACY && streams_[s] != CU_STREAM_PER_THREAD && one_in(2)) {
    // The stream's remaining work goes on; another stream waits for it instead.
    CUevent e;
    must(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
    must(cuEventRecord(e, streams_[s]), "cuEventRecord");
    must(cuStreamWaitEvent(streams_[0], e, 0), "cuStreamWaitEvent");
    must(cuEventDestroy(e), "cuEventDestroy");
    for (const auto& a : arrays_)
      if (const auto it = a->users.find(s); it != a->users.end()) {
        a->users[0] |= it->second;
        a->users.erase(s);
      }
    must(cuStreamDestroy(streams_[s]), "cuStreamDestroy");
    streams_[s] = nullptr;
    if (const auto green = greens_.find(s); green != greens_.end()) {
      must(cuGreenCtxDestroy(green->second), "cuGreenCtxDestroy");
      greens_.erase(green);
    }
  } else if (!streams_[s]) {
    if (one_in(3)) make_green_stream(s);
    if (streams_[s]) return;
    blocking_[s] = one_in(2);
    must(cuStreamCreateWithPriority(&streams_[s], blocking_[s] ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING,
                                    -static_cast<int>(below(3))),
         "cuStreamCreateWithPriority");
  }
}

void ApiProgram::rarer() {
  const size_t s = below(static_cast<uint32_t>(streams_.size()));
  switch (below(6)) {
    case 0:
      return deciding_graph();
    case 1:
      return guest_module();
    case 2:
      return other_context();
    case 3:
      return other_process();
    case 4:
      if (streams_[s]) issue(s, host_function(true));
      return;
    default:
      dynamic_bytes_ = std::min(2 * dynamic_bytes_, 128 << 10);  // more than without asking
      must(cuFuncSetAttribute(mix_, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, dynamic_bytes_),
           "cuFuncSetAttribute");
      must(cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, dynamic_bytes_, library_mix_,
                                0),
           "cuKernelSetAttribute");
  }
}

void ApiProgram::run() {
  must(cuModuleLoadData(&module_, kPtx), "cuModuleLoadData");
  must(cuModuleGetFunction(&count_, module_, "count"), "cuModuleGetFunction");
  must(cuModuleGetFunction(&mix_, module_, "mix"), "cuModuleGetFunction");
  must(cuModuleGetFunction(&sum_, module_, "sum"), "cuModuleGetFunction");
  must(cuLibraryLoadData(&library_, kPtx, nullptr, nullptr, 0, nullptr, nullptr, 0), "cuLibraryLoadData");
  must(cuLibraryGetKernel(&library_mix_, library_, "mix"), "cuLibraryGetKernel");
  must(cuLibraryGetKernel(&library_sum_, library_, "sum"), "cuLibraryGetKernel");
  must(cuMemAlloc(&flags_, kFlags * 4), "cuMemAlloc");
  must(cuMemsetD32(flags_, 0, kFlags), "cuMemsetD32");
  CUmemPoolProps pool{};
  pool.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  pool.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  must(cuMemPoolCreate(&pool_, &pool), "cuMemPoolCreate");
  blocking_ = {true, true, true, false, true, false};
  streams_ = {CU_STREAM_LEGACY, CU_STREAM_PER_THREAD, nullptr, nullptr, nullptr, nullptr};
  for (size_t s = 2; s < streams_.size(); ++s)
    must(cuStreamCreate(&streams_[s], s % 2 ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT), "cuStreamCreate");
  for (uint32_t i = 0; i < 5; ++i) make_array(i == 0 ? 16384 : 16 + below(4000), false);
  for (uint32_t i = 0; i < 3; ++i) make_array(16 + below(2000), true);
  for (uint32_t steps = 30 + below(60); steps; --steps) {
    const uint32_t choice = below(100);
    if (choice < 60) {
      const size_t s = below(static_cast<uint32_t>(streams_.size()));
      if (streams_[s]) issue(s, random_work());
    } else if (choice < 68) {
      synchronise();
    } else if (choice < 74) {
      check(*arrays_[below(static_cast<uint32_t>(arrays_.size()))]);
    } else if (choice < 79) {
      allocate();
    } else if (choice < 83) {
      release();
    } else if (choice < 87) {
      record_graph();
    } else if (choice < 88) {
      join_graphs();
    } else if (choice < 90) {
      change_graph();
    } else if (choice < 95) {
      launch_graph();
    } else if (choice < 98) {
      change_streams();
    } else {
      rarer();
    }
  }
  for (const auto& a : arrays_) check(*a);
  must(cuCtxSynchronize(), "cuCtxSynchronize");
  while (!graphs_.empty()) forget_graph(0);
  for (CUevent e : events_) must(cuEventDestroy(e), "cuEventDestroy");
  for (CUstream s : streams_)
    if (s && s != CU_STREAM_LEGACY && s != CU_STREAM_PER_THREAD) must(cuStreamDestroy(s), "cuStreamDestroy");
  for (const auto& [stream, green] : greens_) must(cuGreenCtxDestroy(green), "cuGreenCtxDestroy");
  for (const auto& a : arrays_)
    if (a->host)
      must(cuMemFreeHost(reinterpret_cast<void*>(a->address)), "cuMemFreeHost");
    else if (a->mapped_bytes)
      must(cuMemUnmap(a->address, a->mapped_bytes), "cuMemUnmap");
    else
      must(cuMemFree(a->address), "cuMemFree");
  must(cuMemFree(flags_), "cuMemFree");
  must(cuMemPoolDestroy(pool_), "cuMemPoolDestroy");
  must(cuLibraryUnload(library_), "cuLibraryUnload");
  must(cuModuleUnload(module_), "cuModuleUnload");
}

}  // namespace

void run_api_program(uint64_t seed) {
  ApiProgram(seed).run();
}

}  // namespace tessera::attack
