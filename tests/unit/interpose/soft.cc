#include "tests/unit/interpose/soft.h"

#include <fstream>
#include <iterator>

#include "interpose/hooks/units.h"

namespace tessera::test {
namespace {

// The software GPU instead of the null driver in the table of the driver.
void software_driver() {
  static const bool once = [] {
    setenv("TESSERA_SOFTGPU_LOCAL", TS_GPU, 0);  // a test may have chosen another
    void* handle = dlopen(TS_SOFT_DRIVER, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
      fprintf(stderr, "software GPU: %s\n", dlerror());
      abort();
    }
    auto* slots = reinterpret_cast<void**>(&driver_api::mutable_real_for_tests());
    for (uint16_t i = 0; i < driver_api::kEntryCount; i++)
      slots[i] = dlsym(handle, driver_api::kEntryInfo[i].symbol);
    driver_api::real().cuInit(0);
    lifecycle::first_call(true, false);
    return true;
  }();
  (void)once;
}

}  // namespace

void Soft::SetUp() {
  software_driver();
  ASSERT_EQ(driver_api::real().cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
  ASSERT_EQ(hook_cuCtxSetCurrent(context), CUDA_SUCCESS);
  gate::g_slow.notify_daemon = []() noexcept {};
  gate::forget_accounts();
  gate::forgive_all();
  state::t_thread.account = nullptr;
  state::g_sm_count.store(4);  // the helper thread would ask the driver
  attach(state::Role::kBestEffort);
  cutting();
}

void Soft::TearDown() {
  EXPECT_EQ(hook_cuCtxSynchronize(), CUDA_SUCCESS);
  lose_daemon();
  gate::forget_accounts();
  gate::forgive_all();
}

std::string Soft::image_path(const char* file) {
  return std::string(TS_IMAGES) + "/" + file;
}

std::vector<char> Soft::bytes_of(const char* file) {
  std::ifstream in(image_path(file), std::ios::binary);
  std::vector<char> bytes{std::istreambuf_iterator<char>(in), {}};
  EXPECT_FALSE(bytes.empty()) << file;
  bytes.push_back(0);
  return bytes;
}

const state::KernelRecord& Soft::forget_class(CUfunction kernel) {
  const state::KernelRecord* known = state::find_kernel(kernel);
  state::LoadedKernel loaded = known->loaded;
  loaded.resource_class = ipc::abi::kResourceUnknown;
  // Lives for ever, as in the library.
  auto* record = new state::KernelRecord{.loaded = loaded, .form = known->form};
  const auto handle = reinterpret_cast<uint64_t>(kernel);
  for (state::KernelSlot& slot : state::g_kernels)
    if (slot.handle.load() == handle) slot.record.store(record);
  return *record;
}

CUdeviceptr Soft::zeros(size_t n_words) {
  CUdeviceptr p = 0;
  EXPECT_EQ(driver_api::real().cuMemAlloc_v2(&p, n_words * 4), CUDA_SUCCESS);
  EXPECT_EQ(driver_api::real().cuMemsetD32_v2(p, 0, n_words), CUDA_SUCCESS);
  EXPECT_EQ(driver_api::real().cuCtxSynchronize(),
            CUDA_SUCCESS);  // for streams that do not wait for the default one
  return p;
}

uint64_t Soft::measured_ns(CUfunction kernel, uint32_t blocks, uint32_t threads) {
  const gate::LaunchCall launch{kernel, {blocks, 1, 1}, {threads, 1, 1}, 0, {}, nullptr, nullptr, nullptr};
  const gate::Timing* timing = hooks::timing_of_kernel(launch, state::find_kernel(kernel));
  return timing ? timing->block_ps.load() * blocks / 1'000 : 0;
}

uint64_t Soft::measure(CUfunction mix, uint32_t blocks, uint32_t threads) {
  CUdeviceptr out = zeros(blocks * threads), in = zeros(blocks * threads);
  uint32_t salt = 1;
  void* params[] = {&out, &in, &salt};
  lease(ipc::abi::kLeaseGranted, 500'000'000, 0);
  for (uint32_t i = 0; i < 20; i++) {
    EXPECT_EQ(launch3(mix, {blocks, 1, 1}, threads, params), CUDA_SUCCESS);
    EXPECT_EQ(hook_cuCtxSynchronize(), CUDA_SUCCESS);
  }
  EXPECT_EQ(driver_api::real().cuMemFree_v2(out), CUDA_SUCCESS);
  EXPECT_EQ(driver_api::real().cuMemFree_v2(in), CUDA_SUCCESS);
  EXPECT_NE(measured_ns(mix, blocks, threads), 0u);
  return measured_ns(mix, blocks, threads);
}

std::vector<uint32_t> Soft::read(CUdeviceptr p, size_t n_words) {
  std::vector<uint32_t> words(n_words);
  EXPECT_EQ(driver_api::real().cuMemcpyDtoH_v2(words.data(), p, n_words * 4), CUDA_SUCCESS);
  driver_api::real().cuMemFree_v2(p);
  return words;
}

uint64_t Soft::stamp(CUfunction f, std::vector<uint32_t> grid, uint32_t salt) {
  const size_t blocks = size_t(grid[0]) * grid[1] * grid[2];
  CUdeviceptr out = zeros(blocks * 32);
  void* params[] = {&out, &salt};
  const uint64_t n =
      cut_of([&] { EXPECT_EQ(launch3(f, grid, 32, params), CUDA_SUCCESS) << "launch of stamp"; });
  const auto words = read(out, blocks * 32);
  for (size_t i = 0; i < words.size(); i++) {
    const uint32_t right = uint32_t(i / 32) * 1000 + uint32_t(i % 32) + salt + grid[0] * 7 + grid[1] * 3;
    if (words[i] == right) continue;
    ADD_FAILURE() << "thread " << i % 32 << " of block " << i / 32 << ": " << words[i] << ", not " << right;
    break;
  }
  return n;
}

}  // namespace tessera::test
