// H15: may a process checkpoint itself, from a thread of its own; may another process of the same user do it; what does each
// step take by size, what becomes free meanwhile, and are contents and pinned memory what they were? What is refused, at
// which step, and does the process live on? What becomes of a restore that finds no room: is it lost, or may it try again?
// What docs/memory.md promises of parking rests on the answers.
#include <memory>
#include <thread>

#include "processes.h"

namespace {

using processes::Child;
using samples::now_ns;

struct Page {
  uint64_t word;  // the gate of an endless stream; closed while it is 0
  char padding[56];
  // The checkpointed process writes these: it stands ready; its memory is off the device; a restore failed; it can go on.
  std::atomic<uint32_t> ready, saved, failed, ended;
  // The process that asks the questions writes these: restore; restore again; look at what you have.
  std::atomic<uint32_t> restore, again, look;
  std::atomic<uint32_t> full;  // by the filler
};

constexpr size_t kMiB = size_t(1) << 20;
constexpr unsigned kLockWithinMs = 1000;
constexpr double kPatienceS = 60;

__global__ void fill(unsigned* out, size_t n, unsigned salt) {
  for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < n; i += size_t(gridDim.x) * blockDim.x)
    out[i] = unsigned(i) * 2654435761u + salt;
}
__global__ void count_wrong(const unsigned* in, size_t n, unsigned salt, unsigned long long* wrong) {
  for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < n; i += size_t(gridDim.x) * blockDim.x)
    if (in[i] != unsigned(i) * 2654435761u + salt) atomicAdd(wrong, 1ull);
}

const char* state_of(int pid) {
  static const auto ask =
      probe::driver_function<CUresult (*)(int, CUprocessState*)>("cuCheckpointProcessGetState", 12080);
  CUprocessState state{};
  if (ask(pid, &state) != CUDA_SUCCESS) return "unknown";
  switch (state) {
    case CU_PROCESS_STATE_RUNNING:
      return "running";
    case CU_PROCESS_STATE_LOCKED:
      return "locked";
    case CU_PROCESS_STATE_CHECKPOINTED:
      return "checkpointed";
    case CU_PROCESS_STATE_FAILED:
      return "failed";
  }
  return "unknown";
}

// One of the four calls: its answer, its time, and the state that it left.
template <class Args>
CUresult step(probe::Report& report, const char* name, const char* function, int pid, Args* arguments) {
  const auto call = probe::driver_function<CUresult (*)(int, Args*)>(function, 12080);
  const uint64_t start_ns = now_ns();
  const CUresult result = call(pid, arguments);
  probe::Report row;
  row.number("answer", result).number("ms", double(now_ns() - start_ns) * 1e-6).text("state", state_of(pid));
  report.raw(name, row.str());
  return result;
}
CUresult lock(probe::Report& report, int pid) {
  CUcheckpointLockArgs arguments{};
  arguments.timeoutMs = kLockWithinMs;
  return step(report, "lock", "cuCheckpointProcessLock", pid, &arguments);
}
CUresult save(probe::Report& report, int pid) {
  return step<CUcheckpointCheckpointArgs>(report, "checkpoint", "cuCheckpointProcessCheckpoint", pid,
                                          nullptr);
}
CUresult restore(probe::Report& report, int pid, const char* name = "restore") {
  return step<CUcheckpointRestoreArgs>(report, name, "cuCheckpointProcessRestore", pid, nullptr);
}
CUresult unlock(probe::Report& report, int pid) {
  return step<CUcheckpointUnlockArgs>(report, "unlock", "cuCheckpointProcessUnlock", pid, nullptr);
}

bool await(const std::atomic<uint32_t>& word) {
  return processes::wait_until(kPatienceS, [&] { return word != 0; });
}

// There and back. Without room it tries once more when it is told that there is some.
void there_and_back(probe::Report& report, Page* page, int pid) {
  if (lock(report, pid) != CUDA_SUCCESS) return;
  if (save(report, pid) != CUDA_SUCCESS) return (void)unlock(report, pid);
  page->saved = 1;
  await(page->restore);
  if (restore(report, pid) != CUDA_SUCCESS) {
    page->failed = 1;
    await(page->again);
    if (restore(report, pid, "restore_again") != CUDA_SUCCESS) return;
  }
  unlock(report, pid);
}

// Has memory of a kind, is checkpointed by a thread of its own or by another process, and looks at what it has.
int subject(Page* page, const std::string& kind, size_t bytes, bool by_itself) {
  probe::Report report;
  const size_t n = bytes / sizeof(unsigned);
  unsigned *device = nullptr, *pinned = nullptr;
  unsigned long long* wrong = nullptr;
  cudaStream_t stream;
  CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CUDA_CHECK(kind == "managed" ? cudaMallocManaged(&device, bytes) : cudaMalloc(&device, bytes));
  CUDA_CHECK(cudaMalloc(&wrong, sizeof *wrong));
  CUDA_CHECK(cudaMemset(wrong, 0, sizeof *wrong));
  CUDA_CHECK(cudaMallocHost(&pinned, sizeof *pinned));
  fill<<<1024, 256, 0, stream>>>(device, n, 7);
  count_wrong<<<1, 32, 0, stream>>>(device, 32, 7, wrong);  // its code is loaded
  CUDA_CHECK(cudaStreamSynchronize(stream));
  *pinned = 7;
  const CUdeviceptr gate = kind == "endless" ? processes::pin_page(page) : 0;
  if (kind == "endless") {
    const auto wait_value = probe::driver_function<processes::WaitValue64>("cuStreamWaitValue64");
    probe::driver_check(wait_value(stream, gate, processes::kOpen, CU_STREAM_WAIT_VALUE_GEQ),
                        "cuStreamWaitValue64");
  }
  if (kind == "exported") {
    cudaIpcMemHandle_t handle;
    CUDA_CHECK(cudaIpcGetMemHandle(&handle, device));
  }
  if (kind == "capturing") CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  page->ready = 1;
  if (by_itself) {
    std::thread helper([&] { there_and_back(report, page, getpid()); });
    helper.join();
    page->ended = 1;
  }
  await(page->look);
  *static_cast<volatile uint64_t*>(&page->word) = processes::kOpen;
  const std::string state = state_of(getpid());
  report.text("ends_as", state);
  if (state == "running") {  // else its calls wait for ever
    if (kind == "capturing") {
      cudaGraph_t graph;
      report.text("end_of_capture", cudaGetErrorName(cudaStreamEndCapture(stream, &graph)));
    }
    count_wrong<<<1024, 256, 0, stream>>>(device, n, 7, wrong);
    unsigned long long n_wrong = ~0ull;
    cudaError_t works = cudaStreamSynchronize(stream);
    if (works == cudaSuccess) works = cudaMemcpy(&n_wrong, wrong, sizeof n_wrong, cudaMemcpyDeviceToHost);
    report.text("works", cudaGetErrorName(works))
        .number("wrong_values", works == cudaSuccess ? double(n_wrong) : NAN)
        .boolean("pinned_kept", *pinned == 7);
  }
  report.print();
  std::fflush(stdout);
  _exit(0);  // what is left may wait for ever
}

int parker(Page* page, int pid) {
  probe::Report report;
  CUDA_CHECK(cudaFree(nullptr));
  there_and_back(report, page, pid);
  report.print();
  return 0;
}

// Prints what is free. Then, unless `leave` is 0, takes all of it but that, until it is killed.
int filler(Page* page, size_t leave) {
  size_t free_bytes = 0, total_bytes = 0;
  CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
  std::printf("{\"free_mib\": %zu}\n", free_bytes / kMiB);
  std::fflush(stdout);
  if (leave == 0) return 0;
  void* memory = nullptr;
  // Free memory can seldom be had in one piece to the last byte.
  while (free_bytes > leave && cudaMalloc(&memory, free_bytes - leave) != cudaSuccess) {
    (void)cudaGetLastError();
    free_bytes -= std::min(free_bytes, 16 * kMiB);
  }
  page->full = 1;
  for (;;) pause();
}

struct Case {
  std::string name, kind;
  size_t mib;
  bool by_itself = true, no_room = false;
};

std::string ask(const Case& c, double limit_s, bool* well) {
  const int descriptor = processes::make_page();
  Page* page = processes::map_page<Page>(descriptor);
  const std::string shared = std::to_string(descriptor), mib = std::to_string(c.mib);
  const auto beside = [&](size_t leave_mib) {
    return std::make_unique<Child>(
        std::vector<std::string>{"--role", "filler", "--page", shared, "--mib", std::to_string(leave_mib)},
        std::vector<std::pair<std::string, std::string>>{});
  };
  Child subject({"--role", "subject", "--kind", c.kind, "--page", shared, "--mib", mib, "--by-itself",
                 c.by_itself ? "1" : "0"},
                {});
  const auto reaches = [&](const std::atomic<uint32_t>& word) {
    return processes::wait_until(limit_s, [&] { return word != 0 || page->ended || !subject.alive(); }) &&
           word != 0;
  };
  probe::Report row;
  reaches(page->ready);
  std::unique_ptr<Child> other;
  if (!c.by_itself)
    other = std::make_unique<Child>(std::vector<std::string>{"--role", "parker", "--page", shared, "--pid",
                                                             std::to_string(subject.pid())},
                                    std::vector<std::pair<std::string, std::string>>{});
  const bool saved =
      processes::wait_until(
          limit_s,
          [&] { return page->saved || page->ended || !subject.alive() || (other && !other->alive()); }) &&
      page->saved;
  if (saved && c.no_room) {
    const auto taken = beside(c.mib / 2);
    processes::wait_until(limit_s, [&] { return page->full || !taken->alive(); });
    page->restore = 1;
    row.boolean("found_no_room", reaches(page->failed));
    taken->kill_now();
    page->again = 1;
  } else if (saved && c.kind == "plain") {
    row.raw("meanwhile", beside(0)->answer(limit_s));
  }
  page->restore = 1;
  if (other) row.raw("parker", other->answer(limit_s));
  page->look = 1;
  const std::string answer = subject.answer(limit_s);
  *well = !processes::failed(answer);
  row.raw("subject", answer);
  close(descriptor);
  return row.str();
}

}  // namespace

int main(int argc, char** argv) {
  std::string role = "all", kind = "plain", sizes = "1024,4096,16384";
  int64_t page_descriptor = -1, mib = 256, by_itself = 1, pid = 0;
  double limit_s = 30;
  samples::parse_options(argc, argv, "H15: checkpoints of a process by itself and by another one.",
                         {{"--role", &role, "all; subject, parker and filler are started by it"},
                          {"--kind", &kind, "what the subject has"},
                          {"--page", &page_descriptor, "descriptor of the shared page"},
                          {"--mib", &mib, "of the subject; what the filler leaves"},
                          {"--mib-list", &sizes, "sizes whose steps are timed"},
                          {"--by-itself", &by_itself, "1: a thread of the subject makes the calls"},
                          {"--pid", &pid, "whom the parker parks"},
                          {"--limit-s", &limit_s, "for each wait"}});
  if (role != "all") {
    Page* page = processes::map_page<Page>(int(page_descriptor));
    if (role == "subject") return subject(page, kind, size_t(mib) * kMiB, by_itself != 0);
    return role == "parker" ? parker(page, int(pid)) : filler(page, size_t(mib) * kMiB);
  }
  std::vector<Case> cases;
  for (size_t at = 0; at < sizes.size();) {
    const size_t end = std::min(sizes.find(',', at), sizes.size());
    const std::string size = sizes.substr(at, end - at);
    cases.push_back({"by_itself_" + size + "_mib", "plain", size_t(std::stoul(size))});
    at = end + 1;
  }
  const size_t small = cases.front().mib;
  cases.push_back({"by_another", "plain", small, false});
  for (const char* refused : {"endless", "capturing", "exported"}) cases.push_back({refused, refused, small});
  cases.push_back({"no_room", "plain", small, true, true});
  cases.push_back({"managed", "managed", small});
  probe::Report report("H15");
  bool held = true;
  for (const Case& c : cases) {
    bool well = false;
    const std::string answer = ask(c, limit_s, &well);
    report.raw(c.name, answer);
    // A refusal may be the end of the process. One that nothing stands in the way of has to answer.
    held = held && (well || c.kind != "plain" || c.no_room);
    report.print();  // so far: if the time is over in the next case, this is there
    std::fflush(stdout);
  }
  return held ? 0 : 1;
}
