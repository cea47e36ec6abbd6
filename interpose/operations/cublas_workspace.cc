#include "interpose/operations/cublas_workspace.h"

#include <atomic>

#include "base/claimed_key.h"
#include "interpose/operations/split.h"
#include "interpose/operations/split_key.h"

namespace tessera::library {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;  // a program uses a handle in one thread at a time
constexpr uint32_t kHandles = 1024, kProbes = 32;
constexpr uint64_t kDefault = 1;

constinit std::atomic<uint64_t> g_handles[kHandles] = {};  // by address; 0: free
constinit std::atomic<uint64_t> g_workspaces[kHandles] = {};
constinit std::atomic<bool> g_is_full{false};  // there was no room for a handle

base::ClaimedKey find(const void* handle, bool claim) {
  constexpr auto kKeyAt = [](uint32_t i) -> auto& {
    return g_handles[i];
  };
  return base::find_key(kKeyAt, kHandles, kProbes, reinterpret_cast<uint64_t>(handle), claim);
}

void remember(const void* handle, uint64_t workspace) {
  if (!handle || !splitting()) return;
  const base::ClaimedKey place = find(handle, workspace != kDefault);
  if (place.at >= 0)
    g_workspaces[place.at].store(workspace, kRelaxed);
  else if (workspace != kDefault)
    g_is_full.store(true, kRelaxed);
}

}  // namespace

void workspace_is_default(const void* handle) {
  remember(handle, kDefault);
}

void workspace_is(const void* handle, const void* workspace, size_t bytes) {
  remember(handle, ClassKey().add(bytes).add_alignment(reinterpret_cast<uint64_t>(workspace)).value());
}

uint64_t workspace_of(const void* handle) {
  const base::ClaimedKey place = find(handle, false);
  if (place.at >= 0) return g_workspaces[place.at].load(kRelaxed);
  return g_is_full.load(kRelaxed) ? 0 : kDefault;
}

}  // namespace tessera::library
