// The function by which libtessera_ranges.so finds this library.
#include "interpose/gate/requests.h"

#include "base/errno_guard.h"
#include "interpose/ranges/contract.h"

namespace tessera::hooks {
namespace {

uint32_t kind(const char* name, uint32_t yields) noexcept {
  return gate::request_kind(name, yields != 0);
}

uint64_t begin(uint32_t kind, uint32_t of_thread) noexcept {
  const base::ErrnoGuard keep_errno;
  return gate::begin_request(kind, of_thread != 0);
}

void end(uint64_t request) noexcept {
  const base::ErrnoGuard keep_errno;
  gate::end_request(request);
}

void drop(uint64_t request) noexcept {
  gate::drop_request(request);
}

constexpr ranges::RequestSide kSide = {.kind = kind, .begin = begin, .end = end, .drop = drop};

}  // namespace
}  // namespace tessera::hooks

extern "C" __attribute__((visibility("default"))) const tessera::ranges::RequestSide* tessera_request_side(
    uint32_t version) noexcept {
  return version == tessera::ranges::kContractVersion ? &tessera::hooks::kSide : nullptr;
}
