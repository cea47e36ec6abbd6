// A best-effort call in pieces: calls of the same library function, with the program's own handle, stream, algorithm, math
// mode and workspace, that together ask for what the call asked for (operations/split.h). Opt-in: TESSERA_SPLIT_OPERATIONS.
//
//   longer than a slice? --no--> whole, with relaxed on the SMs that the lease leaves it
//   can it be cut?       --no--> whole, counted: kept_form
//   do its pieces give the same bits here?
//     yes, or TESSERA_BIT_STABILITY=relaxed   --> pieces
//     no                                      --> whole, counted: kept_unequal; never asked again
//     not known                               --> whole, counted: kept_unproven; once it is tried (split_proof.h)
//
// Called by the hooks (hooks.cc) in the program's threads, inside the outermost call. What the library answers to the first
// piece that fails is the call's answer.
#pragma once

#include "interpose/operations/call.h"
#include "operations/split.h"

namespace tessera::library {

// The arguments of a product, whatever function they are of (split_arguments.h).
struct SplitCall {
  const void* handle;
  const void* function;  // the library's own
  operations::GemmShape shape;
  operations::Matrix a, b, c;
  bool by_pointers;          // batches whose matrices are named by arrays: their C is not known here
  uint64_t settings;         // hash of all other numbers of the call
  const void *alpha, *beta;  // in host memory or on the device, as the handle says
  size_t scalar_bytes;       // of each; 0: of a type that is not known
};
// Calls the library for one piece.
struct PieceIssuer {
  int (*issue)(const void* context, const operations::Piece& piece);
  const void* context;
};

// The call itself, as one piece.
inline operations::Piece as_asked(const SplitCall& call) {
  return {call.shape.m, call.shape.n, call.shape.count, call.a.address, call.b.address, call.c.address};
}

// Read once, by connect().
void read_split_settings();
bool splitting();  // is it asked for?

// The call's GPU time, as the launches below it were expected to take; for the next one of its kind.
void note_expected(const Operation& operation, uint64_t expected_ns);

// True: it is done, and *status is the answer. `call` is told (Call::noted).
bool split(Call& call, const SplitCall& what, const PieceIssuer& issuer, int* status);

// Of a call whose pieces cannot be compared, because nobody knows where its C is: into how many pieces it should go. 1: whole.
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
