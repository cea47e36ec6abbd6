#include "interpose/gate/cover.h"

#include "base/hash.h"
#include "interpose/gate/requests.h"

namespace tessera::gate {
namespace {

using namespace state;
constexpr auto kRelaxed = std::memory_order_relaxed;

// One entry of a direct-mapped table: the newest one wins. Whoever writes makes the version odd meanwhile. A writer that
// meets another one gives up, and a reader that meets one finds nothing: then the helper thread finds out what has ended.
struct Note {
  std::atomic<uint32_t> version;
  std::atomic<uint64_t> name, key;
  struct {
    std::atomic<StreamCount*> count;
    std::atomic<uint64_t> ended;
  } points[2];
};
struct Noted {
  Point points[2];
};

void write(Note& note, uint64_t name, uint64_t key, const Noted& what) {
  uint32_t version = note.version.load(kRelaxed);
  if (version % 2 != 0 ||
      !note.version.compare_exchange_strong(version, version + 1, std::memory_order_acquire))
    return;
  std::atomic_thread_fence(std::memory_order_release);  // the odd version before what follows
  note.name.store(name, kRelaxed);
  note.key.store(key, kRelaxed);
  for (int i = 0; i < 2; i++) {
    note.points[i].count.store(what.points[i].count, kRelaxed);
    note.points[i].ended.store(what.points[i].ended, kRelaxed);
  }
  note.version.store(version + 2, std::memory_order_release);  // pairs with read
}

Noted read(const Note& note, uint64_t name, uint64_t key) {
  const uint32_t version = note.version.load(std::memory_order_acquire);
  if (version % 2 != 0 || note.name.load(kRelaxed) != name || note.key.load(kRelaxed) != key) return {};
  Noted what{};
  for (int i = 0; i < 2; i++)
    what.points[i] = {note.points[i].count.load(kRelaxed), note.points[i].ended.load(kRelaxed)};
  std::atomic_thread_fence(std::memory_order_acquire);  // all of it before the version
  return note.version.load(kRelaxed) == version ? what : Noted{};
}

template <uint32_t kBits>
struct Notes {
  Note notes[1u << kBits];
  Note& of(uint64_t name) { return notes[base::slot_of(name, kBits)]; }
};
// By event: where it was recorded, and what its stream had waited for.
constinit Notes<10> g_events = {};
// By count, with the key of its stream, since a count becomes another stream's: the point that the stream waited for last.
constinit Notes<8> g_waits = {};
// Events that graphs or other processes may record, a bit for each name of this many bits.
constexpr uint32_t kOthersBits = 12;
constinit std::atomic<uint64_t> g_of_others[(1u << kOthersBits) / 64] = {};

uint64_t name_of(const void* handle) {
  return reinterpret_cast<uint64_t>(handle);
}

struct OthersBit {
  std::atomic<uint64_t>& word;
  uint64_t mask;
};
OthersBit others_bit(CUevent event) {
  const uint32_t at = base::slot_of(name_of(event), kOthersBits);
  return {g_of_others[at / 64], uint64_t(1) << at % 64};
}

Point waited_by(const StreamCount& count, uint64_t key) {
  return read(g_waits.of(name_of(&count)), name_of(&count), key).points[0];
}

void add_point(Cover& cover, Point point) {
  // A point that does not fit is not covered: the helper will find out.
  if (point.count != nullptr && cover.n < kMaxCover) cover.items[cover.n++] = point;
}

void take(Cover& cover, StreamCount& count, bool shared) {
  const uint64_t ended = count.ended.load(std::memory_order_acquire);  // pairs with end_work
  if (ended == count.completed.load(kRelaxed)) return;
  // In a shared slot `ended` calls need not be the first ones: only a quiet moment can be sampled.
  if (shared && count.begun.load(std::memory_order_acquire) != ended) return;
  add_point(cover, {&count, ended});
}

void take_stream(Cover& cover, ThreadSlot& slot, uint64_t key, bool shared) {
  for_each_stream(slot, [&](StreamCount& c) {
    if (c.key.load(kRelaxed) != key) return;
    take(cover, c, shared);
    add_point(cover, waited_by(c, key));
  });
}

// Default streams exist once per context, their counts once per thread.
bool is_one_stream(uint64_t key) {
  return key > 2 || g_state.n_contexts.load(kRelaxed) <= 1;
}

// The count of this thread's stream if it counts nothing else, else null.
StreamCount* own_count(uint64_t key) {
  if (!is_one_stream(key)) return nullptr;
  Thread& t = t_thread;
  StreamCount* count = t.key == key ? t.count : switch_stream(t, key);
  if (g_requests_waiting.load(kRelaxed) != 0) t.key = 0;  // a record or a wait is no first call
  return t.shared || count == &t.slot->streams[kStreamsPerThread] ? nullptr : count;
}

}  // namespace

void cover_stream(Cover& cover, uint64_t key) {
  if (!is_one_stream(key)) return;
  if (key == 2) {  // per-thread stream: only this thread's own calls went there
    Thread& t = t_thread;
    if (t.slot && !t.shared) take_stream(cover, *t.slot, key, false);
    return;
  }
  const uint32_t used = g_slots_used.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < used; i++) take_stream(cover, g_slots[i], key, i >= kOwnedSlots);
}

void cover_slot(Cover& cover, ThreadSlot& slot) {
  const bool is_shared = &slot - g_slots >= kOwnedSlots;
  for_each_stream(slot, [&](StreamCount& c) { take(cover, c, is_shared); });
}

void cover_context(Cover& cover) {
  if (g_state.n_contexts.load(kRelaxed) > 1) return;
  const uint32_t used = g_slots_used.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < used; i++) cover_slot(cover, g_slots[i]);
}

void cover_event(Cover& cover, CUevent event) {
  if (!event) return;
  for (const Point& point : read(g_events.of(name_of(event)), name_of(event), 0).points)
    add_point(cover, point);
}

void note_event(CUevent event, uint64_t key) {
  const OthersBit of_others = others_bit(event);
  StreamCount* count = (of_others.word.load(kRelaxed) & of_others.mask) != 0 ? nullptr : own_count(key);
  if (count == nullptr) return forget_event(event);
  const Point own{count, count->ended.load(kRelaxed)};
  write(g_events.of(name_of(event)), name_of(event), 0, {{own, waited_by(*count, key)}});
}

void forget_event(CUevent event) {
  Note& note = g_events.of(name_of(event));
  if (note.name.load(kRelaxed) == name_of(event)) write(note, 0, 0, {});
}

void leave_to_others(CUevent event) {
  const OthersBit of_others = others_bit(event);
  of_others.word.fetch_or(of_others.mask, kRelaxed);
  forget_event(event);
}

Point point_of(CUevent event) {
  return read(g_events.of(name_of(event)), name_of(event), 0).points[0];
}

void note_wait(uint64_t key, Point point) {
  if (point.count == nullptr) return;
  if (StreamCount* count = own_count(key))
    write(g_waits.of(name_of(count)), name_of(count), key, {{point, {}}});
}

void forget_waits(uint64_t key) {
  for (Note& note : g_waits.notes)
    if (key == 0 || note.key.load(kRelaxed) == key) write(note, 0, 0, {});
}

}  // namespace tessera::gate
