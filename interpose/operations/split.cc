#include "interpose/operations/split.h"

#include <stdlib.h>
#include <string.h>

#include <atomic>

#include "interpose/operations/split_counters.h"
#include "interpose/operations/split_key.h"
#include "interpose/operations/split_memory.h"
#include "interpose/operations/split_proof.h"

namespace tessera::library {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

constinit std::atomic<bool> g_relaxed{false};  // pieces need not be proven

// Times that calls of one kind took, direct-mapped: a kind that another one has displaced is longer or shorter than the roofline
// says, until it is called again.
struct Expected {
  std::atomic<uint64_t> operation, ns;
};
constexpr uint32_t kExpected = 4096;
constinit Expected g_expected[kExpected] = {};

Expected& expected_of(uint64_t operation) {
  return g_expected[operation >> 52];
}

uint64_t expected_ns(const operations::NoteReader& reader, Call& call) {
  const uint64_t operation = hash_of(call.operation());
  const Expected& known = expected_of(operation);
  if (known.operation.load(kRelaxed) == operation) return known.ns.load(kRelaxed);
  return reader.expected_ns(&call.note());
}

// An answer of the library is whatever it is to the first piece that fails.
int issue_pieces(Call& call, SplitCall& what, const operations::Split& cut) {
  const auto result = what.result();
  int status = 0;
  for (int64_t i = 0; i < cut.pieces() && status == 0; i++) {
    const PieceNote note(call.note(), 1, uint64_t(cut.pieces()));
    status = what.issue(cut, i, result ? result->c.address : 0);
  }
  return status;
}

// 0: what bits depend on is not to be found out.
uint64_t key_of(SplitCall& what, const Call& call, const operations::Split& cut) {
  const uint64_t settings = what.settings(), machine = settings ? machine_key() : 0;
  if (machine == 0) return 0;
  return ClassKey().add(machine, hash_of(call.operation()), settings, uint64_t(cut.axis), cut.step).value();
}

enum class Way { kWhole, kPieces, kTrial };

struct Plan {
  Way way;
  operations::Split cut;
  uint64_t key;
};

// 1: whole, and it is counted why.
int64_t wanted_pieces(const operations::NoteReader& reader, uint64_t expected_ns) {
  const uint64_t slice_ns = reader.slice_ns();
  const int64_t pieces = operations::pieces_of(expected_ns, slice_ns);
  if (pieces < 2) reader.count(slice_ns == 0 ? kKeptFree : kKeptShort, 1);
  return pieces;
}

// Counts why not.
Plan plan_of(const operations::NoteReader& reader, const Call& call, SplitCall& what, uint64_t expected_ns) {
  const auto whole = [&](uint32_t why) {
    reader.count(why, 1);
    return Plan{Way::kWhole, {}, 0};
  };
  const int64_t pieces = wanted_pieces(reader, expected_ns);
  if (pieces < 2) return {Way::kWhole, {}, 0};
  const auto cut = what.cut(pieces);
  if (!cut) return whole(kKeptForm);
  const uint64_t key = key_of(what, call, *cut);
  switch (key ? recall(key) : Equality::kUnknown) {
    case Equality::kEqual:
      return {Way::kPieces, *cut, key};
    case Equality::kUnequal:
      return whole(kKeptUnequal);
    case Equality::kTried:
    case Equality::kUnknown:
      break;
  }
  if (!what.takes(*cut)) return whole(kKeptForm);
  if (g_relaxed.load(kRelaxed)) return {Way::kPieces, *cut, key};
  if (key == 0 || !what.result()) return whole(kKeptForm);
  reader.count(kKeptUnproven, 1);
  return {reader.undisturbed() ? Way::kTrial : Way::kWhole, *cut, key};
}

// Other kernels may give other bits. 0: all of them.
uint32_t sms_for(const operations::NoteReader& reader, uint64_t expected_ns) {
  return g_relaxed.load(kRelaxed) ? reader.sms(expected_ns) : 0;
}

}  // namespace

constinit std::atomic<bool> g_splitting{false};

void read_split_settings() {
  const char* asked = getenv("TESSERA_SPLIT_OPERATIONS");
  if (!asked || strcmp(asked, "1") != 0) return;
  const char* bits = getenv("TESSERA_BIT_STABILITY");
  g_relaxed.store(bits && strcmp(bits, "relaxed") == 0, kRelaxed);
  open_memory();
  read_library_environment();
  note_reader()->listen(&kTrialListener);
  g_splitting.store(true, kRelaxed);
}

void note_expected(const Operation& operation, uint64_t ns) {
  if (ns == 0) return;
  const uint64_t hash = hash_of(operation);
  Expected& known = expected_of(hash);
  known.ns.store(ns, kRelaxed);  // torn with another kind's: a call more or less is cut
  known.operation.store(hash, kRelaxed);
}

PieceNote::PieceNote(operations::Note& note, uint64_t part, uint64_t all)
    : note_(note), flop_(note.flop), bytes_(note.bytes) {
  const auto of = [&](uint64_t whole) {
    return all == 0 ? whole : uint64_t(double(whole) * double(part) / double(all));
  };
  note.flop = of(flop_);
  note.bytes = of(bytes_);
  note.launches = 0;
}
PieceNote::~PieceNote() {
  note_.flop = flop_;
  note_.bytes = bytes_;
}

int64_t pieces_if_relaxed(Call& call) {
  const operations::NoteReader* reader = note_reader();
  if (!reader) return 1;
  const int64_t pieces = wanted_pieces(*reader, expected_ns(*reader, call));
  if (pieces < 2 || g_relaxed.load(kRelaxed)) return pieces;
  count_kept_form();
  return 1;
}

void count_kept_form() {
  note_reader()->count(kKeptForm, 1);
}

void count_pieces(int64_t pieces) {
  note_reader()->count(kSplitCalls, 1);
  note_reader()->count(kSplitPieces, uint64_t(pieces));
}

bool split(Call& call, SplitCall& what, int* status) {
  const operations::NoteReader* reader = note_reader();
  if (!reader) return false;
  const uint64_t ns = expected_ns(*reader, call);
  const Plan plan = plan_of(*reader, call, what, ns);
  if (plan.way == Way::kTrial) return try_split(what, plan.cut, plan.key, status);
  const uint32_t sms = sms_for(*reader, ns);
  const bool is_narrowed = sms != 0 && what.narrow(sms);
  if (is_narrowed) reader->count(kNarrowedCalls, 1);
  if (plan.way == Way::kPieces) {
    *status = issue_pieces(call, what, plan.cut);
    count_pieces(plan.cut.pieces());
    return true;
  }
  if (!is_narrowed) return false;
  *status = what.issue_whole();
  return true;
}

}  // namespace tessera::library
