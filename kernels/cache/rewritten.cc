#include "kernels/cache/rewritten.h"

#include <cmath>

#include "kernels/cache/bytes.h"

namespace tessera::cache {
namespace {

constexpr size_t kLeastKernelBytes =
    sizeof(uint64_t) + 3 * sizeof(uint32_t) + 2 * sizeof(uint8_t) + 2 * sizeof(double);

}  // namespace

std::string encode(const Rewritten& rewritten) {
  std::string out;
  put(out, uint64_t(rewritten.kernels.size()));
  for (const Kernel& k : rewritten.kernels) {
    put_text(out, k.name);
    put(out, uint8_t(k.refusal));
    put(out, k.n_params);
    put(out, k.param_bytes);
    put(out, k.origin_offset);
    put(out, uint8_t(k.ascending_row));
    put(out, k.slots);
    put(out, k.bytes);
  }
  put_text(out, rewritten.text);
  return out;
}

base::Result<Rewritten> decode(std::string_view bytes) {
  const auto damaged = [] { return base::error(base::Code::kInvalid, "not a rewritten image"); };
  Reader in(bytes);
  Rewritten out;
  const auto n = in.take<uint64_t>();
  if (n > in.left() / kLeastKernelBytes) return damaged();
  out.kernels.resize(n);
  for (Kernel& k : out.kernels) {
    k.name = in.take_text();
    const auto refusal = in.take<uint8_t>();
    if (refusal >= slice::kRefusalCount) return damaged();
    k.refusal = slice::Refusal(refusal);
    k.n_params = in.take<uint32_t>();
    k.param_bytes = in.take<uint32_t>();
    k.origin_offset = in.take<uint32_t>();
    k.ascending_row = in.take<uint8_t>() != 0;
    k.slots = in.take<double>();
    k.bytes = in.take<double>();
    if (!(std::isfinite(k.slots) && std::isfinite(k.bytes))) return damaged();
  }
  out.text = in.take_text();
  if (!in.fine() || in.left() != 0) return damaged();
  return out;
}

}  // namespace tessera::cache
