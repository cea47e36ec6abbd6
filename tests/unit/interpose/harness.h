// Drives the gate's hooks without a preload, a daemon or a GPU: the real-driver table is filled from the null
// driver, and the daemon is a few words of memory that the test writes. One harness per test; state is reset
// between tests.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <setjmp.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <thread>

#include "base/clock.h"
#include "base/futex.h"
#include "interpose/gate/ask.h"
#include "interpose/gate/pulse.h"
#include "interpose/gate/timing.h"
#include "interpose/gate/window.h"
#include "interpose/hooks/hooks.h"
#include "interpose/lifecycle/lifecycle.h"
#include "interpose/slice/cut.h"
#include "interpose/state/clock.h"
#include "interpose/state/process.h"
#include "interpose/track/track.h"
#include "ipc/channel/lease.h"
#include "ipc/channel/pulse.h"
#include "tests/null_driver/null_driver.h"
#include "tests/support/eventually.h"

namespace tessera::test {

namespace abi = ipc::abi;

struct NullDriver {  // loaded once
  void* handle = nullptr;
  decltype(&tessera_null_calls) calls = nullptr;
  decltype(&tessera_null_reset) reset = nullptr;
  decltype(&tessera_null_hold) hold = nullptr;
  decltype(&tessera_null_release) release = nullptr;
  decltype(&tessera_null_record_launches) record = nullptr;
  decltype(&tessera_null_last_launch) last = nullptr;
  static NullDriver& get();
};

inline std::atomic<uint64_t> g_notices{0};

class Gate : public ::testing::Test {
 public:
  void SetUp() override;
  void TearDown() override;

  // The daemon's side of one client.
  struct Region {
    abi::LeaseLine lease{};
    abi::UsageLine usage{};
    abi::PulsePage pulse{};
    abi::RecordRing ring{};
    abi::RequestTable requests{};
    uint32_t word = 0;
  };
  void attach(state::Role role, uint64_t guard_ns = 0);
  void lease(uint32_t state, uint64_t window_ns = 2'000'000, uint64_t slice_ns = 1'000'000,
             uint32_t spacing_ns = 1, uint32_t max_hold_ms = 200, uint64_t lasts_ns = 60'000'000'000,
             uint32_t long_width_percent = 100);
  void lose_daemon();
  void watch(abi::PulsePage* page, uint32_t priority = 5);
  CUresult launch(CUstream stream = nullptr, uint32_t blocks = 1, CUfunction f = nullptr);
  static CUstream new_stream();
  bool busy() const { return ipc::load(region->pulse.busy, std::memory_order_acquire) != 0; }
  uint64_t in_flight() { return std::atomic_ref(region->usage.in_flight_ns).load(); }
  uint32_t waiting() { return std::atomic_ref(region->usage.waiting).load(); }

  Region* region = nullptr;  // leaked: a late thread may still look at it
  state::DaemonLink* link = nullptr;
  NullDriver& null = NullDriver::get();
  CUfunction function = reinterpret_cast<CUfunction>(uintptr_t{0x12340});
};

// While it lives, a signal comes inside each launch, and its handler does not return from there.
class JumpOut {
 public:
  JumpOut();
  ~JumpOut();
  template <class F>
  void of(F&& launch) {
    if (sigsetjmp(back_, 1) == 0) {
      launch();
      ADD_FAILURE() << "the driver was not called";
    }
  }

 private:
  static sigjmp_buf back_;
  struct sigaction before_ {};
  decltype(driver_api::RealDriver::cuLaunchKernel) launch_;
};

// Unwinds as a cancelled thread does.
[[noreturn]] void leave_thread();
// In the place of the driver's launch.
CUresult end_thread(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                    CUstream, void**, void**);

// Stands still unless moved: a calibration whose counter counts nothing.
class StoppedClock {
 public:
  StoppedClock() { move(0); }
  ~StoppedClock() { state::g_calibration.store(nullptr); }
  void move(uint64_t ns) {
    sets_.push_back({0, now_ns_ += ns, 0});  // a reader may still hold any of them
    state::g_calibration.store(&sets_.back(), std::memory_order_release);
  }

 private:
  uint64_t now_ns_ = base::now_ns();
  std::deque<state::Calibration> sets_;
};

}  // namespace tessera::test
