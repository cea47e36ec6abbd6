#include "interpose/ranges/open.h"

#include <pthread.h>

#include <atomic>
#include <cstdlib>

namespace tessera::ranges {
namespace {

const RequestSide* g_side = nullptr;  // written once, before NVTX calls us
pthread_key_t g_stack_key;
bool g_has_key = false;

// Domains have stacks of their own; a program is in one or two, so that theirs lie in one array. What is deeper than that is
// counted only, whatever its domain.
constexpr uint32_t kMostDeep = 128;
struct Stack {
  uint32_t depth = 0, beyond = 0;
  struct {
    const void* domain;
    uint64_t request;
  } ranges[kMostDeep];
};

void drop_all(void* of_thread) {
  auto* stack = static_cast<Stack*>(of_thread);
  for (uint32_t i = 0; i < stack->depth; i++)
    if (stack->ranges[i].request) g_side->drop(stack->ranges[i].request);
  free(stack);
}

// The state of this thread; null: no memory, and its ranges are not measured.
Stack* own_stack(bool make) {
  if (!g_has_key) return nullptr;
  auto* stack = static_cast<Stack*>(pthread_getspecific(g_stack_key));
  if (stack || !make) return stack;
  stack = static_cast<Stack*>(calloc(1, sizeof(Stack)));
  if (stack) pthread_setspecific(g_stack_key, stack);
  return stack;
}

struct Started {
  std::atomic<uint64_t> request;  // 0: free; kTaken: being filled, or emptied
  std::atomic<uint64_t> range;
};
constexpr uint64_t kTaken = UINT64_MAX;
constexpr uint32_t kMostStarted = 64;  // as many as there can be open requests
constinit Started g_started[kMostStarted] = {};
constinit std::atomic<uint32_t> g_n_started{0};

}  // namespace

void prepare_open(const RequestSide* side) {
  g_side = side;
  g_has_key = pthread_key_create(&g_stack_key, drop_all) == 0;
}

void push(const void* domain, uint64_t request) {
  Stack* stack = own_stack(true);
  if (stack && stack->depth < kMostDeep) {
    stack->ranges[stack->depth++] = {domain, request};
    return;
  }
  if (stack) stack->beyond++;
  if (request) g_side->drop(request);
}

void pop(const void* domain) {
  Stack* stack = own_stack(false);
  if (!stack) return;
  if (stack->beyond != 0) {
    stack->beyond--;
    return;
  }
  for (uint32_t i = stack->depth; i-- > 0;) {
    if (stack->ranges[i].domain != domain) continue;
    const uint64_t request = stack->ranges[i].request;
    stack->depth--;
    for (; i < stack->depth; i++) stack->ranges[i] = stack->ranges[i + 1];
    if (request) g_side->end(request);
    return;
  }
}

void start(uint64_t range, uint64_t request) {
  for (Started& s : g_started) {
    uint64_t free = 0;
    if (!s.request.compare_exchange_strong(free, kTaken, std::memory_order_acq_rel)) continue;
    s.range.store(range, std::memory_order_relaxed);
    g_n_started.fetch_add(1,
                          std::memory_order_relaxed);  // relaxed: who ends it was told of it by this thread
    s.request.store(request, std::memory_order_release);
    return;
  }
  g_side->drop(request);
}

void end(uint64_t range) {
  if (g_n_started.load(std::memory_order_relaxed) == 0) return;
  for (Started& s : g_started) {
    uint64_t request = s.request.load(std::memory_order_acquire);
    if (request == 0 || request == kTaken || s.range.load(std::memory_order_relaxed) != range) continue;
    if (!s.request.compare_exchange_strong(request, kTaken, std::memory_order_acq_rel)) continue;
    g_n_started.fetch_sub(1, std::memory_order_relaxed);
    s.request.store(0, std::memory_order_release);
    g_side->end(request);
    return;
  }
}

}  // namespace tessera::ranges
