#include "interpose/operations/split_gemm.h"

#include "interpose/operations/cublas_workspace.h"
#include "interpose/operations/split_key.h"
#include "interpose/operations/split_libraries.h"

namespace tessera::library {
namespace {

constexpr int kInHostMemory = 0;        // cublasPointerMode_t
constexpr int kEmulatedFixedPoint = 8;  // cublasMath_t

}  // namespace

// Whole bytes; nothing in the arguments that the library would refuse for the whole call but not for a piece.
std::optional<operations::Split> GemmCall::cut(int64_t pieces) {
  for (const operations::Matrix* x : {&gemm_.a, &gemm_.b, &gemm_.c})
    if (x->address == 0 || x->bits == 0 || x->bits % 8 != 0) return std::nullopt;
  if (!operations::leading_dimensions_fit(gemm_.shape, gemm_.a, gemm_.b, gemm_.c)) return std::nullopt;
  if (result_is_known() && !operations::region_of(gemm_.shape, gemm_.c)) return std::nullopt;
  return operations::split_of(gemm_.family, gemm_.shape, pieces);
}

uint64_t GemmCall::settings() {
  const Cublas* cublas = splitting_cublas(function);
  int version = 0, mode = 0, pointers = 0, atomics = 0, target = 0;
  if (!cublas || cublas->version(gemm_.handle, &version) != 0 ||
      cublas->math_mode(gemm_.handle, &mode) != 0 || cublas->pointer_mode(gemm_.handle, &pointers) != 0 ||
      cublas->atomics_mode(gemm_.handle, &atomics) != 0 ||
      (cublas->sm_target && cublas->sm_target(gemm_.handle, &target) != 0))
    return 0;
  // How precise it is may depend on the numbers of whole matrices.
  if ((mode & kEmulatedFixedPoint) != 0) return 0;
  const uint64_t workspace = workspace_of(gemm_.handle);
  if (workspace == 0 || gemm_.scalar_bytes == 0) return 0;
  ClassKey key;
  key.add(gemm_.numbers, workspace, version, mode, pointers, atomics, target);
  for (const operations::Matrix* x : {&gemm_.a, &gemm_.b, &gemm_.c}) key.add_alignment(x->address);
  // A library that can read them may choose by them.
  if (pointers == kInHostMemory) {
    if (!gemm_.alpha || !gemm_.beta) return 0;
    for (const void* scalar : {gemm_.alpha, gemm_.beta}) key.add_bytes(scalar, gemm_.scalar_bytes);
  }
  return key.value();
}

std::optional<operations::Result> GemmCall::result() const {
  if (!result_is_known()) return std::nullopt;
  return operations::Result{gemm_.family, gemm_.shape, gemm_.c};
}

bool GemmCall::stream(void** out) const {
  const Cublas* cublas = splitting_cublas(function);
  return cublas && cublas->stream(gemm_.handle, out) == 0;
}

bool GemmCall::narrow(uint32_t sms) {
  return target_.emplace(gemm_.handle, function, sms).is_set();
}

int GemmCall::issue(const operations::Split& cut, int64_t index, uint64_t result) {
  const operations::Piece piece = operations::piece_of(cut, gemm_.shape, index);
  const operations::SplitRow& row = *operations::split_row(gemm_.family, cut.axis);
  operations::Matrix c = gemm_.c;
  if (result_is_known()) c.address = result;
  const uint64_t values[] = {uint64_t(piece.m),
                             uint64_t(piece.n),
                             operations::moved(gemm_.a, row.a, piece),
                             operations::moved(gemm_.b, row.b, piece),
                             operations::moved(c, row.c, piece),
                             uint64_t(piece.count)};
  return repeater.issue(repeater.context, values);
}

}  // namespace tessera::library
