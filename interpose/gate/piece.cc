#include "interpose/gate/piece.h"

#include "interpose/gate/learnt.h"
#include "interpose/gate/operation.h"

namespace tessera::gate {
namespace {

using admission::Action;
constexpr auto kRelaxed = std::memory_order_relaxed;

// Work behind something that its stream may wait for for ever does not count: nobody would see it end.
admission::Ask counted(const Piece& piece) {
  admission::Ask ask = piece.ask;
  if (account_of(piece.stream)->blind.load(kRelaxed)) ask.estimate_ns = 0;
  return ask;
}

bool is_timed(const Sampling& s) {
  return s.time_it == TimeIt::kYes ||
         (s.time_it == TimeIt::kIfLoaded && load_code(s.launch->function, s.kernel));
}

Sample* begin_sample(const Sampling& s, driver_api::StreamArg stream) {
  if (!s.launch) return sample_begin(s.timing, stream, s.record_key);
  const LaunchCall& launch = *s.launch;
  note_shape(s.named, launch, s.kernel);
  const uint64_t key = s.named ? s.named->key.load(kRelaxed) : s.record_key;
  return sample_begin(s.timing, stream, key,
                      {below_call(kernel_id(launch, s.kernel), s.blocks, launch.blocks()),
                       s.expected_ns != 0 ? launch.function : nullptr, s.expected_ns});
}

}  // namespace

Passing::Passing(const Piece& piece, Wait& wait)
    : piece_(piece), action_(ask(counted(piece), piece.stream, wait, reservation_, piece.terms)) {
  if (action_ == Action::kGo && is_timed(piece.sampling))
    sample_ = begin_sample(piece.sampling, piece.stream);
}

void Passing::end_sample(CUresult result) {
  sample_end(sample_, piece_.stream, piece_.sampling.blocks, piece_.sampling.wave_blocks, result);
  sample_ = nullptr;
}

}  // namespace tessera::gate
