// Which bursts of a language model's service are prefills, and which are steps of its decoder? Nothing is known of a burst
// but its signature, which says what was launched for it, and when it began and ended:
//
//   a request:  prefill  step  step  step ...      each begins at once where the one before has ended
//
// A step is a burst whose signature repeats, in rows that mostly begin behind a longer burst of another signature: the
// prefill. Short bursts between two steps do not matter (sampling, a check for the end of the text). Pure; no allocation.
#pragma once

#include <cstdint>

namespace tessera::admission {

enum class BurstRole : uint8_t { kNone, kPrefill, kStep };

class BurstRoles {
 public:
  struct Burst {
    uint64_t signature, start_ns, end_ns;
    uint64_t length_ns() const { return end_ns > start_ns ? end_ns - start_ns : 0; }
    // No step of a model is so short, so that such bursts need not be added.
    bool is_short() const { return length_ns() < 20'000; }
  };

  // The role of the burst that ended, as far as its signature tells. A prefill is known for sure when its first step has
  // ended: `was_prefill(const Burst&)` is called then, once for each.
  template <class F>
  BurstRole add(const Burst& burst, F&& was_prefill) {
    forget_unless_at_once(burst);
    Recent* heads[kRecent];  // longer ones that came before, since the latest of this signature
    uint32_t n_heads = 0;
    bool repeats = false, is_behind_longer = false;
    for (uint32_t i = n_recent_; i-- > 0 && !repeats;) {
      repeats = recent_[i].burst.signature == burst.signature;
      if (repeats || recent_[i].burst.length_ns() <= burst.length_ns()) continue;
      is_behind_longer = true;
      if (!recent_[i].is_step) heads[n_heads++] = &recent_[i];
    }
    Row& row = row_of(burst.signature);
    row.count(repeats && !is_behind_longer, n_heads != 0);
    const bool is_step = row.is_step();
    for (uint32_t i = is_step ? n_heads : 0; i-- > 0;) {
      if (heads[i]->was_prefill) continue;
      heads[i]->was_prefill = true;
      if (Row* of = find(heads[i]->burst.signature)) of->prefills++;
      was_prefill(static_cast<const Burst&>(heads[i]->burst));
    }
    keep({burst, is_step, false});
    return is_step ? BurstRole::kStep : row.is_prefill() ? BurstRole::kPrefill : BurstRole::kNone;
  }

 private:
  // A step may have this number of bursts: the forward pass, and what looks at its result.
  static constexpr uint32_t kRecent = 4;
  // Prompts of each length may have a signature of their own, so that few of the rows are steps.
  static constexpr uint32_t kRows = 32;
  // Two requests of at least four steps: one row of bursts alone may be the warm-up of any service.
  static constexpr uint64_t kNeededBursts = 8, kNeededHeads = 2;
  static constexpr uint64_t kKeptStretches = 16;  // of which older ones count half

  struct Row {
    uint64_t bursts = 0;
    uint64_t repeats = 0;   // that followed one of their signature, with nothing longer between
    uint64_t headed = 0;    // others, that followed a longer burst which was no step
    uint64_t prefills = 0;  // that were prefills
    uint64_t stretches() const { return bursts - repeats; }
    void count(bool repeats_now, bool headed_now) {
      bursts++;
      repeats += repeats_now;
      headed += headed_now;
      if (stretches() < kKeptStretches) return;
      bursts /= 2, repeats /= 2, headed /= 2, prefills /= 2;
    }
    bool is_step() const {
      return bursts >= kNeededBursts && repeats * 4 >= bursts * 3 && headed >= kNeededHeads &&
             headed * 2 >= stretches();
    }
    bool is_prefill() const { return prefills != 0 && prefills * 2 >= bursts; }
  };
  struct Recent {
    Burst burst;
    bool is_step, was_prefill;
  };

  // A burst that begins after a longer gap than the longest recent burst does not belong to them: the service waited for a
  // request.
  void forget_unless_at_once(const Burst& burst) {
    if (n_recent_ == 0) return;
    uint64_t longest_ns = burst.length_ns();
    for (uint32_t i = 0; i < n_recent_; i++)
      if (recent_[i].burst.length_ns() > longest_ns) longest_ns = recent_[i].burst.length_ns();
    if (burst.start_ns > recent_[n_recent_ - 1].burst.end_ns + longest_ns) n_recent_ = 0;
  }

  void keep(const Recent& recent) {
    if (n_recent_ == kRecent) {
      for (uint32_t i = 1; i < kRecent; i++) recent_[i - 1] = recent_[i];
      n_recent_--;
    }
    recent_[n_recent_++] = recent;
  }

  Row* find(uint64_t signature) {
    for (uint32_t i = 0; i < kRows; i++)
      if (signatures_[i] == signature && used_[i] != 0) return &rows_[i];
    return nullptr;
  }

  Row& row_of(uint64_t signature) {
    const Row* const found = find(signature);
    uint32_t row = found == nullptr ? 0 : uint32_t(found - rows_);
    if (found == nullptr) {
      for (uint32_t i = 1; i < kRows; i++)
        if (used_[i] < used_[row]) row = i;
      signatures_[row] = signature;
      rows_[row] = {};
    }
    used_[row] = ++now_;
    return rows_[row];
  }

  // Apart from the rows, so that a search touches few lines of the cache.
  uint64_t signatures_[kRows] = {}, used_[kRows] = {};  // used_: when, in bursts; 0: the row is free
  Row rows_[kRows] = {};
  Recent recent_[kRecent] = {};
  uint32_t n_recent_ = 0;
  uint64_t now_ = 0;
};

}  // namespace tessera::admission
