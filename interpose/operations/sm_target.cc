#include "interpose/operations/sm_target.h"

#include "base/hash.h"
#include "interpose/operations/split_libraries.h"

namespace tessera::library {
namespace {

// Handles whose target is ours at the moment, by address: whoever reads one that is not here reads the program's.
constexpr uint32_t kHandles = 256;
constinit std::atomic<const void*> g_in_use[kHandles] = {};

std::atomic<const void*>* claim(const void* handle) {
  std::atomic<const void*>& place = g_in_use[base::slot_of(reinterpret_cast<uint64_t>(handle), 8)];
  const void* free = nullptr;
  // acquire: pairs with the release of the call before, which has put back what was set
  return place.compare_exchange_strong(free, handle, std::memory_order_acquire, std::memory_order_relaxed)
             ? &place
             : nullptr;
}

}  // namespace

SmTarget::SmTarget(const void* handle, const void* function, uint32_t sms) {
  cublas_ = splitting_cublas(function);
  if (!cublas_ || !cublas_->sm_target || !cublas_->set_sm_target) return;
  in_use_ = claim(handle);
  if (!in_use_) return;
  if (cublas_->sm_target(handle, &before_) == 0 && is_less(sms, before_) &&
      cublas_->set_sm_target(handle, int(sms)) == 0)
    return;
  in_use_->store(nullptr, std::memory_order_release);
  in_use_ = nullptr;
}

SmTarget::~SmTarget() {
  if (!in_use_) return;
  cublas_->set_sm_target(in_use_->load(std::memory_order_relaxed), before_);
  in_use_->store(nullptr, std::memory_order_release);  // pairs with claim()
}

}  // namespace tessera::library
