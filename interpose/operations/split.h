// A best-effort call in pieces: calls of the same library function, with the program's own handle, stream, algorithm, math
// mode and workspace, that together ask for what the call asked for (operations/split.h). Opt-in: TESSERA_SPLIT_OPERATIONS.
//
//   longer than a slice? --no--> whole, with relaxed on the SMs that the lease leaves it; counted: kept_short, kept_free
//   can it be cut?       --no--> whole, counted: kept_form
//   do its pieces give the same bits here?
//     yes, or TESSERA_BIT_STABILITY=relaxed   --> pieces
//     no                                      --> whole, counted: kept_unequal; never asked again
//     not known                               --> whole, counted: kept_unproven; once it is tried (split_proof.h)
//
// Called by the hooks (hooks.cc) in the program's threads, inside the outermost call. What the library answers to the first
// piece that fails is the call's answer.
#pragma once

#include <optional>

#include "interpose/operations/call.h"
#include "operations/split.h"

namespace tessera::library {

// Calls the library as the program did, but with some arguments replaced by `values`; null: with none (split_arguments.h).
struct Repeater {
  int (*issue)(const void* context, const uint64_t* values);
  const void* context;
};

// One call of a library, and how it is cut: split_gemm.h, split_lt.h, split_cudnn.h. Lives as long as the call.
class SplitCall {
 public:
  virtual int issue_whole() const { return repeater.issue(repeater.context, nullptr); }
  // Into at most `pieces`. Nothing: it cannot be cut, or the library would refuse it. Asked before all that follows.
  virtual std::optional<operations::Split> cut(int64_t pieces) = 0;
  // Hash of what bits depend on, but for GPU, driver, cut, and what call.h knows; 0: not to be found out.
  virtual uint64_t settings() = 0;
  // Does the library take the pieces? Asked of calls whose class was not found equal.
  virtual bool takes(const operations::Split&) { return true; }
  // Nothing: nobody here knows.
  virtual std::optional<operations::Result> result() const = 0;
  // The one that the call's work goes to. False: not to be found out.
  virtual bool stream(void** out) const = 0;
  // The library is to choose kernels for that number of SMs, as long as this lives. False: it is not told.
  virtual bool narrow(uint32_t) { return false; }
  // One piece; its part of the result is where it would be if the result were at that address.
  virtual int issue(const operations::Split& cut, int64_t index, uint64_t result) = 0;

  const void* const function;  // the library's own
  const Repeater repeater;

 protected:
  SplitCall(const void* called, const Repeater& again) : function(called), repeater(again) {}
  ~SplitCall() = default;
  SplitCall(const SplitCall&) = delete;
  SplitCall& operator=(const SplitCall&) = delete;
};

// Read once, by connect().
void read_split_settings();
extern constinit std::atomic<bool> g_splitting;  // is it asked for? Stored once
inline bool splitting() {
  return g_splitting.load(std::memory_order_relaxed);  // published by the role, as the reader is
}

// The call's GPU time, as the launches below it were expected to take; for the next one of its kind.
void note_expected(const Operation& operation, uint64_t expected_ns);

// True: it is done, and *status is the answer. `call` is told (Call::noted).
bool split(Call& call, SplitCall& what, int* status);

// For a call whose pieces cannot be compared, because nobody knows where its C is: into how many pieces it should go. 1: whole.
int64_t pieces_if_relaxed(Call& call);
void count_pieces(int64_t pieces);
void count_kept_form();

// While it lives, the call's note is that of one piece, `part` of `all`: for the launches below, a piece is the call.
class PieceNote {
 public:
  PieceNote(operations::Note& note, uint64_t part, uint64_t all);
  ~PieceNote();
  PieceNote(const PieceNote&) = delete;
  PieceNote& operator=(const PieceNote&) = delete;

 private:
  operations::Note& note_;
  const uint64_t flop_, bytes_;
};

}  // namespace tessera::library
