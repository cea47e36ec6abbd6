// In place of libtessera.so, for splitting. READER_SLICE: slice of the lease, a call takes a nanosecond for each 100 FLOP;
// READER_BUSY=1: somebody of a higher level is busy. READER_SMS: SMs that the lease leaves, 0: all. Prints what was counted when the process ends.
#include <stdlib.h>

#include <atomic>
#include <cstdio>
#include <iterator>

#include "operations/note.h"

namespace {

using tessera::operations::Note;
using tessera::operations::NoteReader;

const uint32_t g_role = 2;
std::atomic<uint64_t> g_counts[15] = {};
const tessera::operations::Listener* g_listener = nullptr;

uint64_t number(const char* variable) {
  const char* text = getenv(variable);
  return text ? strtoull(text, nullptr, 10) : 0;
}

const NoteReader kReader = {.role = &g_role,
                            .reading_role = 2,
                            .reserved = 0,
                            .begin = [](Note*) {},
                            .end = [](Note*) {},
                            .slice_ns = [] { return number("READER_SLICE"); },
                            .expected_ns = [](const Note* note) { return note->flop / 100; },
                            .sms = [](uint64_t) { return uint32_t(number("READER_SMS")); },
                            .undisturbed = []() -> uint32_t { return number("READER_BUSY") == 0; },
                            .count =
                                [](uint32_t counter, uint64_t n) {
                                  if (counter < std::size(g_counts)) g_counts[counter] += n;
                                },
                            .listen = [](const tessera::operations::Listener* l) { g_listener = l; }};

struct AtExit {
  ~AtExit() {
    static const char* const kNames[] = {"",
                                         "split_calls",
                                         "split_pieces",
                                         "proven",
                                         "unequal",
                                         "kept_unproven",
                                         "kept_unequal",
                                         "kept_form",
                                         "narrowed",
                                         "",
                                         "",
                                         "",
                                         "",
                                         "kept_short",
                                         "kept_free"};
    for (size_t i = 1; i < std::size(kNames); i++)
      if (*kNames[i]) fprintf(stderr, "%s %lu\n", kNames[i], g_counts[i].load());
  }
} g_at_exit;

}  // namespace

extern "C" __attribute__((visibility("default"))) const NoteReader* tessera_note_reader(uint32_t version) {
  return version == tessera::operations::kNoteVersion ? &kReader : nullptr;
}
extern "C" __attribute__((visibility("default"))) uint64_t reader_split_calls() {
  return g_counts[1];
}
extern "C" __attribute__((visibility("default"))) void reader_idle() {
  if (g_listener) g_listener->waited();
}
extern "C" __attribute__((visibility("default"))) void reader_context_ended(const void* context) {
  if (g_listener) g_listener->context_ended(context);
}
extern "C" __attribute__((visibility("default"))) unsigned reader_memory_short() {
  return g_listener ? g_listener->memory_short() : 0;
}
