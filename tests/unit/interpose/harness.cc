#include "tests/unit/interpose/harness.h"

#include <cstring>

namespace tessera::test {
namespace {

template <class T>
void resolve(void* handle, T& out, const char* name) {
  out = reinterpret_cast<T>(dlsym(handle, name));
}

void count_notice() noexcept {
  g_notices.fetch_add(1);
}

}  // namespace

NullDriver& NullDriver::get() {
  static NullDriver driver = [] {
    NullDriver d;
    d.handle = dlopen(TS_NULL_DRIVER, RTLD_NOW | RTLD_LOCAL);
    if (!d.handle) {
      fprintf(stderr, "null driver: %s\n", dlerror());
      abort();
    }
    auto* slots = reinterpret_cast<void**>(&driver_api::mutable_real_for_tests());
    for (uint16_t i = 0; i < driver_api::kEntryCount; i++)
      if (void* at = dlsym(d.handle, driver_api::kEntryInfo[i].symbol)) slots[i] = at;
    resolve(d.handle, d.calls, "tessera_null_calls");
    resolve(d.handle, d.reset, "tessera_null_reset");
    resolve(d.handle, d.hold, "tessera_null_hold");
    resolve(d.handle, d.release, "tessera_null_release");
    resolve(d.handle, d.record, "tessera_null_record_launches");
    resolve(d.handle, d.last, "tessera_null_last_launch");
    driver_api::real().cuInit(0);
    return d;
  }();
  return driver;
}

namespace {

void use_primary_context() {
  CUcontext context = nullptr;
  driver_api::real().cuDevicePrimaryCtxRetain(&context, 0);
  hook_cuCtxSetCurrent(context);
}

}  // namespace

sigjmp_buf JumpOut::back_;

JumpOut::JumpOut() {
  struct sigaction action {};
  action.sa_handler = [](int) { siglongjmp(back_, 1); };
  sigaction(SIGUSR1, &action, &before_);
  launch_ = std::exchange(driver_api::mutable_real_for_tests().cuLaunchKernel,
                          [](CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                             CUstream, void**, void**) { return CUresult(raise(SIGUSR1)); });
}
JumpOut::~JumpOut() {
  driver_api::mutable_real_for_tests().cuLaunchKernel = launch_;
  sigaction(SIGUSR1, &before_, nullptr);
}

#ifdef __SANITIZE_ADDRESS__
extern "C" void __asan_handle_no_return();
#endif
void leave_thread() {
#ifdef __SANITIZE_ADDRESS__
  __asan_handle_no_return();  // frames without cleanups are unwound unseen
#endif
  pthread_exit(nullptr);
}

CUresult end_thread(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                    CUstream, void**, void**) {
  leave_thread();
}

void Gate::SetUp() {
  NullDriver::get();
  null.hold(0);
  static bool once = [] {
    lifecycle::first_call(true, false);
    return true;
  }();
  (void)once;
  use_primary_context();
  gate::g_slow.notify_daemon = count_notice;
  gate::forget_accounts();
  gate::forgive_all();
  state::t_thread.account = nullptr;
  g_notices = 0;
}

void Gate::TearDown() {
  null.hold(0);
  lose_daemon();
  gate::forget_accounts();
  gate::forgive_all();
  for (state::Watch& w : state::g_state.watch) w.page.store(&state::g_idle_pulse);
  state::g_state.n_watched.store(0);
  state::begin_epoch();
  state::g_state.poisoned.store(0);
}

void Gate::attach(state::Role role, uint64_t guard_ns) {
  region = new Region;
  link =
      new state::DaemonLink{&region->lease, &region->usage, &region->ring, 64, &region->pulse, guard_ns, 0};
  link->requests = &region->requests;
  state::g_state.holding.store(0);
  state::set_link(link);
  state::g_state.role.store(role);
}

void Gate::lease(uint32_t state, uint64_t window_ns, uint64_t slice_ns, uint32_t spacing_ns,
                 uint32_t max_hold_ms, uint64_t lasts_ns, uint32_t long_width_percent) {
  ipc::LeaseTerms terms;
  terms.state = state;
  terms.window_ns = window_ns;
  terms.slice_ns = slice_ns;
  terms.marker_spacing_ns = spacing_ns;
  terms.max_hold_ms = max_hold_ms;
  terms.watch_spin_us = 20;
  terms.expires_ns = base::now_ns() + lasts_ns;
  terms.long_width_percent = long_width_percent;
  ipc::lease_publish(region->lease, region->word, terms);
}

void Gate::lose_daemon() {
  state::set_link(&state::g_unmanaged);
  state::g_state.role.store(state::Role::kForward);
}

void Gate::watch(abi::PulsePage* page, uint32_t priority) {
  state::g_state.watch[0].priority.store(priority);
  state::g_state.watch[0].page.store(page);
  state::g_state.n_watched.store(1);
  state::begin_epoch();
}

CUresult Gate::launch(CUstream stream, uint32_t blocks, CUfunction f) {
  return hook_cuLaunchKernel(f ? f : function, blocks, 1, 1, 128, 1, 1, 0, stream, nullptr, nullptr);
}

CUstream Gate::new_stream() {
  CUstream stream = nullptr;
  CUcontext current = nullptr;
  driver_api::real().cuCtxGetCurrent(&current);
  if (!current) use_primary_context();  // a thread of the test
  EXPECT_EQ(hook_cuStreamCreate(&stream, 0), CUDA_SUCCESS);
  return stream;
}

}  // namespace tessera::test
