// Reads what a call of cuDNN asks for from its descriptors. The library's own functions read them, at each call: what a descriptor says
// may change between two calls, and unlike those of cuBLASLt its bytes are nobody's business but the library's.
//
// Called by the hooks in the program's threads, inside the outermost call. Nothing allocates or waits.
#pragma once

#include <atomic>
#include <initializer_list>

#include "interpose/operations/call.h"

namespace tessera::library {

// The part that a tensor plays in its layer: a number of elements of operations/layers.h, or, kOther, only bytes. kFilter is read as a filter
// descriptor, and its area is the length of the sum of a convolution.
enum class Role : uint8_t { kX, kY, kZ, kParameter, kRunning, kOther, kFilter };

struct LayerTensor {
  Role role;
  const void* descriptor;  // null: the call has none
  uint32_t passes;         // 0: no operand of this call
};

inline constexpr size_t kMostTensors = 8;
struct Layer {
  const void* own;  // descriptor of the layer itself: convolution, pooling ...; null: has none that counts
  int32_t setting;  // algorithm that an argument names
  uint32_t n_tensors;
  LayerTensor tensors[kMostTensors];  // the last one is the result
};
constexpr Layer layer(const void* own, int32_t setting, std::initializer_list<LayerTensor> tensors) {
  Layer out{own, setting, 0, {}};
  for (const LayerTensor& tensor : tensors) out.tensors[out.n_tensors++] = tensor;
  return out;
}
// How many of these are there.
template <class... Pointer>
constexpr uint32_t given(const Pointer*... pointers) {
  return ((pointers != nullptr ? 1u : 0u) + ...);
}

// One of the three passes of a recurrent network: how often its sequences x and y, or their gradients, and its states h and c are
// read or written.
struct RecurrentPass {
  const void *network, *x, *y, *h, *c;
  uint32_t x_passes, y_passes, h_passes, c_passes;
  uint64_t weight_bytes, reserve_bytes;
};

// A function of the library whose descriptors are read; null: none is known. Written by the hooks (hooks.cc), relaxed: it
// is code, which does not change.
extern constinit std::atomic<const void*> g_cudnn_function;
// Returns cuDNN for dlsym(); null: none is known. Slow.
void* cudnn_library();

// `out->entry` is the call's. False: the library will refuse it, or its descriptors cannot be read.
bool describe(const Layer& what, Operation* out);
bool describe(const RecurrentPass& what, Operation* out);

}  // namespace tessera::library
