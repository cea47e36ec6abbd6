// H26: which calls of a program wait while one of its streams stands behind a closed gate (cuStreamWaitValue64, GEQ)? Each is made
// by a thread of its own; if it has not returned after --limit-ms, the gate opens: it waited.
#include <cuda.h>

#include <thread>

#include "processes.h"

namespace {

using samples::now_ns;

struct Page {
  std::atomic<uint64_t> word;
};

__global__ void never_launched_before() {}

constexpr char kImage[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry of_an_image()\n{\n  ret;\n}\n";
constexpr size_t kLargeBytes = size_t(64) << 20, kPinnedBytes = size_t(1) << 20;

template <class... A>
void driver_call(const char* name, A... arguments) {
  probe::driver_check(probe::driver_function<CUresult (*)(A...)>(name)(arguments...), name);
}

// A range of addresses with memory behind it, as frameworks' allocators have them.
struct Mapped {
  size_t bytes = 0;
  CUdeviceptr address = 0;
  CUmemGenericAllocationHandle memory = 0;
  Mapped() {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    driver_call("cuMemGetAllocationGranularity", &bytes, static_cast<const CUmemAllocationProp*>(&properties),
                CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
    driver_call("cuMemAddressReserve", &address, bytes, size_t(0), CUdeviceptr(0), 0ull);
    driver_call("cuMemCreate", &memory, bytes, static_cast<const CUmemAllocationProp*>(&properties), 0ull);
    driver_call("cuMemMap", address, bytes, size_t(0), memory, 0ull);
  }
};

struct Question {
  const char* name;
  std::function<void()> call;
};

}  // namespace

int main(int argc, char** argv) {
  int64_t limit_ms = 200;
  samples::parse_options(argc, argv,
                         "H26: calls while a stream of the same program stands behind a closed gate.",
                         {{"--limit-ms", &limit_ms, "until a call is said to wait"}});
  auto* page = processes::map_page<Page>(processes::make_page());
  const CUdeviceptr word = processes::pin_page(page);
  cudaStream_t gated, other;
  CUDA_CHECK(cudaStreamCreateWithFlags(&gated, cudaStreamNonBlocking));
  CUDA_CHECK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  probe::nothing<<<1, 1, 0, other>>>();  // loads its code
  std::vector<char> pageable(kLargeBytes, 1), small(kPinnedBytes, 1);
  char *memory = nullptr, *more = nullptr;
  CUDA_CHECK(cudaMalloc(&memory, kLargeBytes));
  const Mapped mapped;
  CUmodule module = nullptr;
  CUcontext context = nullptr;
  driver_call("cuCtxGetCurrent", &context);
  CUDA_CHECK(cudaDeviceSynchronize());

  const Question questions[] = {
      {"launch", [&] { probe::nothing<<<1, 1, 0, other>>>(); }},
      {"first_launch", [&] { never_launched_before<<<1, 1, 0, other>>>(); }},
      {"stream_synchronize", [&] { CUDA_CHECK(cudaStreamSynchronize(other)); }},
      {"pageable_copy_in",
       [&] {
         CUDA_CHECK(cudaMemcpyAsync(memory, pageable.data(), kLargeBytes, cudaMemcpyHostToDevice, other));
       }},
      {"pageable_copy_out",
       [&] {
         CUDA_CHECK(cudaMemcpyAsync(pageable.data(), memory, kLargeBytes, cudaMemcpyDeviceToHost, other));
       }},
      {"host_register",
       [&] { CUDA_CHECK(cudaHostRegister(small.data(), kPinnedBytes, cudaHostRegisterDefault)); }},
      {"host_unregister", [&] { CUDA_CHECK(cudaHostUnregister(small.data())); }},
      {"malloc", [&] { CUDA_CHECK(cudaMalloc(&more, kLargeBytes)); }},
      {"free", [&] { CUDA_CHECK(cudaFree(more)); }},
      {"mem_unmap", [&] { driver_call("cuMemUnmap", mapped.address, mapped.bytes); }},
      {"module_load", [&] { driver_call("cuModuleLoadData", &module, static_cast<const void*>(kImage)); }},
      {"module_unload", [&] { driver_call("cuModuleUnload", module); }},
  };
  probe::Report report("H26");
  probe::add_device(report);
  for (const Question& question : questions) {
    page->word = processes::kOpen & ~0xffull;
    driver_call("cuStreamWaitValue64", gated, word, processes::kOpen, unsigned(CU_STREAM_WAIT_VALUE_GEQ));
    probe::nothing<<<1, 1, 0, gated>>>();
    std::atomic<uint64_t> returned_ns{0};
    std::atomic<uint64_t> start_ns{0};
    std::thread caller([&] {
      driver_call("cuCtxSetCurrent", context);
      start_ns = now_ns();
      question.call();
      returned_ns = now_ns();
    });
    const bool returned = processes::wait_until(double(limit_ms) * 1e-3, [&] { return returned_ns != 0; });
    page->word = processes::kOpen;
    caller.join();
    CUDA_CHECK(cudaDeviceSynchronize());
    report.boolean(std::string(question.name) + "_waits", !returned);
    if (returned) report.number(std::string(question.name) + "_us", double(returned_ns - start_ns) * 1e-3);
  }
  report.print();
}
