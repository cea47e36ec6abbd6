// Counts the kernels of a file that can be cut on one GPU, by the part of each container that its driver would take.
// The rules are those of interpose/track/substitute.cc without the state of a running module. Pure, but for the cache;
// any thread.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "kernels/cache/store.h"

namespace tessera::cli {

// The outcomes of a kernel: id, name in JSON, words behind a number of kernels.
// clang-format off
#define TS_CUT_OUTCOMES(X)                                                                             \
  X(kCut, "can_be_cut", "can be cut")                                                                  \
  X(kMachineCode, "machine_code_only", "machine code without PTX")                                     \
  X(kNewerPtx, "ptx_newer_than_gpu", "machine code whose PTX is for newer GPUs")                       \
  X(kNoSource, "no_source", "machine code whose PTX is not surely its source")                         \
  X(kRule, "rule", "refused by a rule of the analysis (tessera inspect FILE names it)")                \
  X(kOrder, "order", "whose results may depend on the order of blocks")                                \
  X(kBits, "bit_stability", "machine code; compiling its PTX again may change last bits")              \
  X(kState, "module_state", "machine code with state of its module that a copy cannot have")           \
  X(kVendor, "nvidia_library", "of a library of NVIDIA's, which is never modified")
// clang-format on
enum class CutOutcome : uint8_t {
#define TS_ROW(id, name, text) id,
  TS_CUT_OUTCOMES(TS_ROW)
#undef TS_ROW
};
#define TS_ROW(id, name, text) +1
inline constexpr size_t kCutOutcomes = 0 TS_CUT_OUTCOMES(TS_ROW);
#undef TS_ROW
const char* outcome_name(CutOutcome);
const char* outcome_text(CutOutcome);

struct CutShareOptions {
  unsigned sm = 0;                      // of the GPU
  std::string file_name;                // without folders: tells NVIDIA's libraries
  bool relaxed = false;                 // --bit-stability relaxed
  bool allow_order_dependent = false;   // as the run-time option
  const cache::Store* cache = nullptr;  // where proved variants may be; null: only in the file
};

struct CutShare {
  struct Kernel {
    std::string name;
    CutOutcome outcome;
  };
  std::vector<Kernel> kernels;                // that run on the GPU
  std::array<size_t, kCutOutcomes> counts{};  // of kernels, by outcome
  std::vector<std::string> not_for_gpu;       // targets of containers of which the GPU can run nothing
  std::vector<std::string> unread;            // what could not be looked into, and why
  size_t n_cut() const { return counts[size_t(CutOutcome::kCut)]; }
};

// An error: the bytes hold nothing that can be read. One entry is in memory at a time.
base::Result<CutShare> cut_share(std::span<const uint8_t> bytes, const CutShareOptions& options);

// "On NVIDIA H200 (sm_90) 3 of 4 kernels can be cut (75 %); 1 is machine code without PTX."
std::string cut_share_sentence(const CutShare& share, const std::string& gpu_name, unsigned sm);

// The remedies, one sentence each.
std::vector<std::string> cut_share_remedies(const CutShare& share, unsigned sm);

}  // namespace tessera::cli
