// The entry layer inside one program: its objects are linked here, the null driver stands for the real one.
// Every test that makes the first call runs in a child process, because a process has only one.
#include "interpose/entry/entry.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "interpose/hooks/hooks.h"

namespace {

std::atomic<int> g_first_calls{0};
std::atomic<bool> g_found{false}, g_disabled{false};
std::string g_path;
std::atomic<int> g_hook_calls{0};
std::atomic<int> g_awaited{0};
void (*g_exchange_slots)(bool) = nullptr;

}  // namespace

// Strong definitions, as the gate's: they replace the weak ones.
extern "C" void tessera_on_first_call(const tessera::hooks::FirstCall* first) noexcept {
  ++g_first_calls;
  g_found = first->driver_found;
  g_disabled = first->disabled;
  g_path = first->driver_path;
  g_exchange_slots = first->exchange_slots;
}
extern "C" void tessera_await_return() noexcept {
  ++g_awaited;
}
extern "C" CUresult hook_cuCtxSynchronize() noexcept {
  ++g_hook_calls;
  return tessera::driver_api::real().cuCtxSynchronize();
}

namespace tessera::entry {
namespace {

using driver_api::Entry;

// Runs `body` in a child that makes the first call itself; the child's failures become ours.
template <class Body>
void first_call_in_child(const char* driver, Body body) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    setenv("TESSERA_DRIVER", driver, 1);
    body();
    _exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "child ended with status " << status;
}

TEST(Entry, NothingHappensBeforeTheFirstCall) {
  EXPECT_EQ(g_first_calls, 0);
  EXPECT_EQ(driver_api::real().cuInit(0), CUDA_ERROR_NOT_INITIALIZED);
}

TEST(Entry, FirstCallOpensTheDriverOnceAndIsItselfForwarded) {
  first_call_in_child(NULL_DRIVER, [] {
    errno = 77;
    EXPECT_EQ(cuInit(0), CUDA_SUCCESS);
    EXPECT_EQ(errno, 77);
    EXPECT_EQ(g_first_calls, 1);
    EXPECT_TRUE(g_found);
    EXPECT_FALSE(g_disabled);
    EXPECT_EQ(g_path, NULL_DRIVER);
    EXPECT_EQ(cuInit(0), CUDA_SUCCESS);
    EXPECT_EQ(g_first_calls, 1);
    EXPECT_EQ(call_count(Entry::cuInit), 2u);
    EXPECT_EQ(call_count(Entry::cuDeviceGet), 0u);
    EXPECT_EQ(counters().entries_missing, 0u);
    EXPECT_EQ(counters().captured_relocations, 0u);
  });
}

TEST(Entry, ManyThreadsAtOnceGetOneInit) {
  first_call_in_child(NULL_DRIVER, [] {
    std::atomic<bool> go{false};
    std::atomic<int> good{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 16; ++i) {
      threads.emplace_back([&] {
        while (!go.load(std::memory_order_acquire)) std::this_thread::yield();
        int version = 0;
        if (cuDriverGetVersion(&version) == CUDA_SUCCESS && version == 13050) ++good;
      });
    }
    go.store(true, std::memory_order_release);
    for (auto& t : threads) t.join();
    EXPECT_EQ(good, 16);
    EXPECT_EQ(g_first_calls, 1);
  });
}

TEST(Entry, HooksAreCalledThroughTheStubAndThroughItsAddress) {
  first_call_in_child(NULL_DRIVER, [] {
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    void* p = nullptr;
    auto status = static_cast<CUdriverProcAddressQueryResult>(77);
    ASSERT_EQ(cuGetProcAddress_v2("cuCtxSynchronize", &p, 12000, 0, &status), CUDA_SUCCESS);
    EXPECT_EQ(p, exported_address(Entry::cuCtxSynchronize));
    const auto handed_out = reinterpret_cast<CUresult (*)()>(p);
    EXPECT_EQ(handed_out(), CUDA_SUCCESS);
    EXPECT_EQ(g_hook_calls, 2);
    EXPECT_EQ(call_count(Entry::cuCtxSynchronize), 2u);
  });
}

// Names of every ABI and stream flavour, up to the newest release.
TEST(Entry, EveryHookedEntryPointIsHandedOutByItsName) {
  first_call_in_child(NULL_DRIVER, [] {
    int found = 0, newer = 0;
    for (uint16_t i = 0; i < driver_api::kEntryCount; ++i) {
      const driver_api::EntryInfo& row = driver_api::kEntryInfo[i];
      if (row.klass == driver_api::Class::kPass || row.since == 0) continue;
      const cuuint64_t flags = row.flavour == driver_api::Flavour::kPerThread
                                   ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM
                                   : CU_GET_PROC_ADDRESS_LEGACY_STREAM;
      void* p = nullptr;
      ASSERT_EQ(cuGetProcAddress_v2(row.base, &p, row.since, flags, nullptr), CUDA_SUCCESS);
      EXPECT_EQ(p, exported_address(static_cast<Entry>(i))) << row.symbol;
      EXPECT_EQ(dlsym(RTLD_DEFAULT, row.symbol), p) << row.symbol;
      ++found;
      if (row.since > 13000) ++newer;
    }
    EXPECT_GT(found, 300);
    EXPECT_EQ(newer, 21);
  });
}

// While a process is parked every slot leads to where its threads wait, and then to where it led before.
TEST(Entry, ExchangedSlotsWaitAndGoOnWhereTheyLed) {
  first_call_in_child(NULL_DRIVER, [] {
    int version = 0;
    ASSERT_EQ(cuDriverGetVersion(&version), CUDA_SUCCESS);
    std::vector<void*> before;
    for (uint16_t i = 0; i < driver_api::kEntryCount; ++i)
      before.push_back(driver_api::real_slot(static_cast<Entry>(i)));
    g_exchange_slots(true);
    g_awaited = 0;
    for (uint16_t i = 0; i < driver_api::kEntryCount; ++i) {
      const bool stays = std::string(driver_api::kEntryInfo[i].symbol).starts_with("cuCheckpointProcess");
      EXPECT_EQ(driver_api::real_slot(static_cast<Entry>(i)) == before[i], stays)
          << driver_api::kEntryInfo[i].symbol;
    }
    EXPECT_EQ(cuDriverGetVersion(&version), CUDA_SUCCESS);  // a row that nobody handles
    EXPECT_EQ(version, 13050);
    EXPECT_EQ(g_awaited, 1);
    EXPECT_EQ(driver_api::real().cuDriverGetVersion(&version), CUDA_SUCCESS);  // from within a hook
    EXPECT_EQ(g_awaited, 2);
    g_hook_calls = 0;
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);  // both: the hook, then the driver
    EXPECT_EQ(g_hook_calls, 1);
    EXPECT_EQ(g_awaited, 4);
    g_exchange_slots(false);
    for (uint16_t i = 0; i < driver_api::kEntryCount; ++i)
      EXPECT_EQ(driver_api::real_slot(static_cast<Entry>(i)), before[i]) << driver_api::kEntryInfo[i].symbol;
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    EXPECT_EQ(g_hook_calls, 2);
    EXPECT_EQ(g_awaited, 4);
  });
}

// No call of a program that can be parked may reach the driver unseen.
TEST(Entry, EveryEntryPointIsHandedOutToWhoCanBeParked) {
  first_call_in_child(NULL_DRIVER, [] {
    setenv("TESSERA_PARKABLE", "1", 1);
    int found = 0;
    for (uint16_t i = 0; i < driver_api::kEntryCount; ++i) {
      const driver_api::EntryInfo& row = driver_api::kEntryInfo[i];
      if (row.klass != driver_api::Class::kPass || row.since == 0) continue;
      const cuuint64_t flags = row.flavour == driver_api::Flavour::kPerThread
                                   ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM
                                   : CU_GET_PROC_ADDRESS_LEGACY_STREAM;
      void* p = nullptr;
      ASSERT_EQ(cuGetProcAddress_v2(row.base, &p, row.since, flags, nullptr), CUDA_SUCCESS);
      EXPECT_EQ(p, exported_address(static_cast<Entry>(i))) << row.symbol;
      ++found;
    }
    EXPECT_GT(found, 200);
  });
}

TEST(Entry, SwitchedOffByTheUserHandsOutTheDriversPointers) {
  first_call_in_child(NULL_DRIVER, [] {
    setenv("TESSERA_DISABLE", "1", 1);
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    EXPECT_TRUE(g_disabled);
    EXPECT_EQ(g_hook_calls, 0);
    void* p = nullptr;
    ASSERT_EQ(cuGetProcAddress_v2("cuLaunchKernel", &p, 12000, 0, nullptr), CUDA_SUCCESS);
    EXPECT_NE(p, exported_address(Entry::cuLaunchKernel));
  });
}

TEST(Entry, LookupsAreCountedByOutcome) {
  first_call_in_child(NULL_DRIVER, [] {
    void* p = nullptr;
    ASSERT_EQ(cuGetProcAddress_v2("cuLaunchKernel", &p, 12000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM,
                                  nullptr),
              CUDA_SUCCESS);
    EXPECT_EQ(p, exported_address(Entry::cuLaunchKernel_ptsz));
    ASSERT_EQ(cuGetProcAddress("cuMemcpyHtoD", &p, 12000, 0), CUDA_SUCCESS);
    EXPECT_EQ(p, exported_address(Entry::cuMemcpyHtoD_v2));
    ASSERT_EQ(cuGetProcAddress("cuMemcpyHtoD", &p, 2000, 0), CUDA_SUCCESS);
    EXPECT_EQ(p, exported_address(Entry::cuMemcpyHtoD)) << "an old ABI is a different entry";
    ASSERT_EQ(cuGetProcAddress("cuGetProcAddress", &p, 12000, 0), CUDA_SUCCESS);
    EXPECT_EQ(p, exported_address(Entry::cuGetProcAddress_v2));
    ASSERT_EQ(cuGetProcAddress("cuGetProcAddress", &p, 11030, 0), CUDA_SUCCESS);
    EXPECT_EQ(p, exported_address(Entry::cuGetProcAddress));
    ASSERT_EQ(cuGetProcAddress("cuDeviceGetName", &p, 12000, 0), CUDA_SUCCESS);
    EXPECT_EQ(p, driver_api::real_slot(Entry::cuDeviceGetName)) << "not hooked: the driver's own pointer";
    EXPECT_EQ(cuGetProcAddress("cuNoSuchFunction", &p, 12000, 0), CUDA_ERROR_NOT_FOUND);
    const Counters c = counters();
    EXPECT_EQ(c.lookups, 7u);
    EXPECT_EQ(c.lookups_substituted, 5u);
    EXPECT_EQ(c.lookups_ambiguous + c.lookups_unindexed + c.lookups_unknown, 0u);
  });
}

// A driver that answers lookups strangely: shared addresses, unknown names, addresses that it does not
// export.
TEST(Entry, StrangeAnswersAreHandedOnAndCounted) {
  first_call_in_child(STRANGE_DRIVER, [] {
    void* p = nullptr;
    // One address for a launch and a copy, asked by a name that is neither: the driver's pointer stays.
    ASSERT_EQ(cuGetProcAddress("cuFuncGetModule", &p, 12000, 0), CUDA_SUCCESS);
    EXPECT_EQ(p, driver_api::real_slot(Entry::cuLaunchKernel));
    EXPECT_EQ(counters().lookups_ambiguous, 1u);
    // The same address asked by name is the entry of that name.
    ASSERT_EQ(cuGetProcAddress("cuMemcpy", &p, 12000, 0), CUDA_SUCCESS);
    EXPECT_EQ(p, exported_address(Entry::cuMemcpy));
    // A name that only a newer driver knows, and a known name whose address is no export.
    ASSERT_EQ(cuGetProcAddress("cuFromTheFuture", &p, 12000, 0), CUDA_SUCCESS);
    EXPECT_EQ(counters().lookups_unknown, 1u);
    ASSERT_EQ(cuGetProcAddress("cuStreamQuery", &p, 12000, 0), CUDA_SUCCESS);
    EXPECT_EQ(counters().lookups_unindexed, 1u);
    // Success without a pointer must not be looked up.
    p = &p;
    EXPECT_EQ(cuGetProcAddress("null", &p, 12000, 0), CUDA_SUCCESS);
    EXPECT_EQ(p, nullptr);
    // This driver has only the first form: the second is answered by it, status included.
    auto status = static_cast<CUdriverProcAddressQueryResult>(77);
    ASSERT_EQ(cuGetProcAddress_v2("cuMemcpy", &p, 12000, 0, &status), CUDA_SUCCESS);
    EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SUCCESS);
    EXPECT_EQ(cuGetProcAddress_v2("absent", &p, 12000, 0, &status), CUDA_SUCCESS);
    EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    EXPECT_EQ(p, nullptr);
    EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_NOT_SUPPORTED);
  });
}

TEST(Entry, DriverWithoutCuGetProcAddressIsAskedByTheTable) {
  first_call_in_child(OLD_DRIVER, [] {
    void* p = &p;
    auto status = static_cast<CUdriverProcAddressQueryResult>(77);
    ASSERT_EQ(cuGetProcAddress_v2("cuInit", &p, 11030, 0, &status), CUDA_SUCCESS);
    EXPECT_EQ(p, exported_address(Entry::cuInit));  // a hooked row
    EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SUCCESS);
    ASSERT_EQ(cuGetProcAddress("cuDriverGetVersion", &p, 11030, 2), CUDA_SUCCESS);
    EXPECT_EQ(p, driver_api::real_slot(Entry::cuDriverGetVersion));
    // The newest that the asked version knows, in the asked flavour.
    ASSERT_EQ(cuGetProcAddress_v2("cuMemsetD8", &p, 3010, 0, &status), CUDA_SUCCESS);
    EXPECT_EQ(p, exported_address(Entry::cuMemsetD8));
    ASSERT_EQ(cuGetProcAddress_v2("cuMemsetD8", &p, 11030, 0, &status), CUDA_SUCCESS);
    EXPECT_EQ(p, exported_address(Entry::cuMemsetD8_v2));
    ASSERT_EQ(cuGetProcAddress_v2("cuMemsetD8", &p, 11030, 2, &status), CUDA_SUCCESS);
    EXPECT_EQ(p, exported_address(Entry::cuMemsetD8_v2_ptds));
    ASSERT_EQ(cuGetProcAddress_v2("cuMemsetD8", &p, 6050, 2, &status), CUDA_SUCCESS);
    EXPECT_EQ(status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
    EXPECT_EQ(p, nullptr);
    // Names that this driver does not have.
    ASSERT_EQ(cuGetProcAddress_v2("cuLaunchKernel", &p, 11030, 0, &status), CUDA_SUCCESS);
    EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    p = &p;
    EXPECT_EQ(cuGetProcAddress("cuLaunchKernel", &p, 11030, 0), CUDA_ERROR_NOT_FOUND);
    EXPECT_EQ(p, static_cast<void*>(&p));
    EXPECT_EQ(cuGetProcAddress("cuInit", &p, 11030, 4), CUDA_ERROR_INVALID_VALUE);
  });
  // Also when Tessera is switched off: dlsym finds the name either way.
  first_call_in_child(OLD_DRIVER, [] {
    setenv("TESSERA_DISABLE", "1", 1);
    void* p = &p;
    ASSERT_EQ(cuGetProcAddress_v2("cuInit", &p, 11030, 0, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(p, driver_api::real_slot(Entry::cuInit));
  });
}

TEST(Entry, DriverThatCallsUsWhileItIsOpenedIsAnswered) {
  first_call_in_child(CALLING_DRIVER, [] {
    EXPECT_EQ(cuInit(0), CUDA_SUCCESS);
    EXPECT_EQ(counters().nested_in_init, 1u);
    const auto answer =
        reinterpret_cast<int*>(dlsym(dlopen(CALLING_DRIVER, RTLD_NOW), "answer_in_constructor"));
    ASSERT_NE(answer, nullptr);
    EXPECT_EQ(*answer, CUDA_ERROR_NOT_INITIALIZED);
  });
}

TEST(Entry, ChildForkedDuringInitTakesOver) {
  first_call_in_child(BLOCKING_DRIVER, [] {
    int entered[2], leave[2];
    ASSERT_EQ(pipe(entered), 0);
    ASSERT_EQ(pipe(leave), 0);
    setenv("ENTERED_FD", std::to_string(entered[1]).c_str(), 1);
    setenv("LEAVE_FD", std::to_string(leave[0]).c_str(), 1);
    std::thread first([] { cuInit(0); });
    char byte;
    ASSERT_EQ(read(entered[0], &byte, 1), 1);  // the driver's constructor runs in `first`
    const pid_t child = fork();
    if (child == 0) _exit(cuInit(0) == CUDA_SUCCESS && counters().nested_in_init == 0 ? 0 : 1);
    int status = -1;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
    ASSERT_EQ(write(leave[1], "x", 1), 1);
    first.join();
    EXPECT_EQ(cuInit(0), CUDA_SUCCESS);
  });
}

TEST(Entry, WithoutADriverHooksStayAway) {
  first_call_in_child("/nonexistent/libcuda.so.1", [] {
    EXPECT_EQ(cuInit(0), CUDA_ERROR_NO_DEVICE);
    EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_NO_DEVICE);
    EXPECT_EQ(g_hook_calls, 0);
    EXPECT_FALSE(g_found);
    EXPECT_EQ(g_path, "");
  });
}

}  // namespace
}  // namespace tessera::entry
