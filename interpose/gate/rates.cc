#include "interpose/gate/rates.h"

#include <algorithm>
#include <atomic>
#include <string_view>

namespace tessera::gate {
namespace {

struct Described {
  const char* name;
  Rates rates;
};
constexpr Described kDescribed[] = {
#define TS_GPU_RATES(name, h2d, d2h, memory, overhead_ns, ...) \
  {name, {h2d, d2h, memory, overhead_ns, {__VA_ARGS__}}},
#include "profiles/gpus/rates.def"
};

constexpr int kDevices = 64;
struct Device {
  std::atomic<uint32_t> state;  // 0 unknown, 1 one thread asks the driver, 2 `rates` is constant from now on
  Rates rates;
};
constinit Device g_devices[kDevices] = {};
constinit std::atomic<const Rates*> g_first{&kCautiousRates};
constinit thread_local const Rates* t_rates __attribute__((tls_model("initial-exec"))) = nullptr;

Rates rates_of(CUdevice device) {
  const auto& real = driver_api::real();
  char name[256] = {};
  if (real.cuDeviceGetName(name, sizeof name - 1, device) == CUDA_SUCCESS)
    for (const Described& gpu : kDescribed)
      if (std::string_view(gpu.name) == name) return gpu.rates;
  Rates rates = kCautiousRates;
  int khz = 0, bits = 0;
  if (real.cuDeviceGetAttribute(&khz, CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, device) == CUDA_SUCCESS &&
      real.cuDeviceGetAttribute(&bits, CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, device) == CUDA_SUCCESS &&
      khz > 0 && bits > 0)
    rates.memory = std::max<uint64_t>(1, uint64_t(khz) * 2 * uint64_t(bits) / 8 / 1000);  // two per clock
  return rates;
}

}  // namespace

const Rates& rates() {
  return t_rates ? *t_rates : *g_first.load(std::memory_order_acquire);  // pairs with use_rates_of
}

void use_rates_of(CUdevice device) {
  if (device < 0 || device >= kDevices) return;
  Device& d = g_devices[device];
  uint32_t unknown = 0;
  if (d.state.compare_exchange_strong(unknown, 1, std::memory_order_relaxed)) {
    d.rates = rates_of(device);
    d.state.store(2, std::memory_order_release);  // pairs with the load below
    const Rates* nobody = &kCautiousRates;
    g_first.compare_exchange_strong(nobody, &d.rates, std::memory_order_release, std::memory_order_relaxed);
  }
  t_rates = d.state.load(std::memory_order_acquire) == 2 ? &d.rates : nullptr;
}

uint64_t transfer_ns(const driver_api::Transfer& transfer, const Rates& rates) {
  using driver_api::Direction;
  const uint64_t slower_link = std::min(rates.h2d, rates.d2h);
  double bytes = double(transfer.bytes);
  uint64_t per_us = slower_link;
  switch (transfer.direction) {
    case Direction::kHostToDevice:
      per_us = rates.h2d;
      break;
    case Direction::kDeviceToHost:
      per_us = rates.d2h;
      break;
    case Direction::kWithinDevice:
      per_us = rates.memory;
      bytes *= 2;  // read and written
      break;
    case Direction::kFill:
      per_us = rates.memory;
      break;
    case Direction::kPeer:  // no description names the link between devices
    case Direction::kUnknown:
      break;
  }
  const double ns = bytes * 1000 / double(per_us);
  return rates.overhead_ns + uint64_t(std::min(ns, double(kLongestTransferNs)));
}

}  // namespace tessera::gate
