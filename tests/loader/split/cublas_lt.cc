// A cuBLASLt that computes on the host, in order of k, in single precision; its descriptors are those of the software GPU's.
// FAKE_CHECK=refused, workspace: its algorithm does not do for fewer than 200 rows or columns, or wants more memory for these
// than anybody has. What SM targets its products had is counted, those with an algorithm of the caller's apart.
#include <cublasLt.h>

#include "tests/loader/split/fake.h"
// After the toolkit's.
#include "softgpu/libraries/cublas/lt.h"

using tessera::softgpu::cublas::Layout;
using tessera::softgpu::cublas::layout_of;
using tessera::softgpu::cublas::Operation;
using tessera::softgpu::cublas::operation_of;

namespace {

constexpr uint64_t kAlgorithm = 0x616c676f;
constexpr size_t kMuch = size_t(1) << 40;

// Calls with an SM target, and the least of these targets.
struct Targets {
  std::atomic<int> calls{0}, least{0};
  void add(int target) {
    if (target == 0) return;
    calls++;
    for (int known = least; known == 0 || target < known;)
      if (least.compare_exchange_weak(known, target)) return;
  }
};
Targets g_targets, g_targets_of_chosen;

// Element (i, j) of op(X).
size_t at(const Layout& x, int32_t op, int64_t i, int64_t j) {
  if (op != CUBLAS_OP_N) std::swap(i, j);
  return size_t(x.order == CUBLASLT_ORDER_ROW ? i * x.leading + j : i + j * x.leading);
}

bool small(const Layout& d) {
  return d.products == 1 && (d.rows < 200 || d.columns < 200);
}

// The caller's algorithm.
bool does_not_do(const Layout& d) {
  return is_set_to("FAKE_CHECK", "refused") && small(d);
}
size_t wanted_bytes(const Layout& d) {
  return is_set_to("FAKE_CHECK", "workspace") && small(d) ? kMuch : 0;
}

bool valid(const Operation& op, const Layout& a, const Layout& b, const Layout& c, const Layout& d) {
  const auto rows = [](const Layout& x, int32_t how) { return how == CUBLAS_OP_N ? x.rows : x.columns; };
  const auto columns = [](const Layout& x, int32_t how) { return how == CUBLAS_OP_N ? x.columns : x.rows; };
  for (const Layout* x : {&a, &b, &c, &d})
    if (uint64_t(x->leading) < (x->order == CUBLASLT_ORDER_ROW ? x->columns : x->rows) ||
        x->products != d.products || x->type != CUDA_R_32F)
      return false;
  return rows(a, op.op_a) == d.rows && columns(b, op.op_b) == d.columns &&
         columns(a, op.op_a) == rows(b, op.op_b) && c.rows == d.rows && c.columns == d.columns;
}

}  // namespace

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void*, size_t workspace_bytes,
                              cudaStream_t) {
  g_calls++;
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  const Operation& op = *operation_of(operation);
  const Layout &la = *layout_of(a_layout), &lb = *layout_of(b_layout), &lc = *layout_of(c_layout),
               &ld = *layout_of(d_layout);
  (algorithm ? g_targets_of_chosen : g_targets).add(op.sm_count_target);
  if (!alpha || !beta || !a || !b || !d || !valid(op, la, lb, lc, ld) ||
      (algorithm && algorithm->data[0] != kAlgorithm))
    return CUBLAS_STATUS_INVALID_VALUE;
  if (algorithm && (does_not_do(ld) || wanted_bytes(ld) > workspace_bytes))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  const float scale = *static_cast<const float*>(alpha), add = *static_cast<const float*>(beta);
  const auto *fa = static_cast<const float*>(a), *fb = static_cast<const float*>(b),
             *fc = static_cast<const float*>(c), *bias = static_cast<const float*>(op.bias);
  auto* fd = static_cast<float*>(d);
  const bool has_bias = (op.epilogue & CUBLASLT_EPILOGUE_BIAS) != 0,
             rectified = (op.epilogue & CUBLASLT_EPILOGUE_RELU) != 0;
  const float more =
      depends_on_size(add != 0) ? float(ld.rows * ld.columns * uint64_t(ld.products) % 1000) * 1e-3f : 0;
  const int64_t k = int64_t(op.op_a == CUBLAS_OP_N ? la.columns : la.rows);
  for (int64_t p = 0; p < ld.products; p++)
    for (int64_t i = 0; i < int64_t(ld.rows); i++)
      for (int64_t j = 0; j < int64_t(ld.columns); j++) {
        float sum = more;
        for (int64_t l = 0; l < k; l++)
          sum += fa[p * la.stride + int64_t(at(la, op.op_a, i, l))] *
                 fb[p * lb.stride + int64_t(at(lb, op.op_b, l, j))];
        float value = scale * sum;
        if (add != 0) value += add * fc[p * lc.stride + int64_t(at(lc, CUBLAS_OP_N, i, j))];
        if (has_bias) value += bias[p * op.bias_stride + i];
        if (rectified && value < 0) value = 0;
        fd[p * ld.stride + int64_t(at(ld, CUBLAS_OP_N, i, j))] = value;
      }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t operation,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t* algorithm,
                                       cublasLtMatmulHeuristicResult_t* result) {
  if (!valid(*operation_of(operation), *layout_of(a), *layout_of(b), *layout_of(c), *layout_of(d)) ||
      algorithm->data[0] != kAlgorithm)
    return CUBLAS_STATUS_INVALID_VALUE;
  if (does_not_do(*layout_of(d))) return CUBLAS_STATUS_NOT_SUPPORTED;
  *result = {};
  result->workspaceSize = wanted_bytes(*layout_of(d));
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = reinterpret_cast<cublasLtHandle_t>(&g_targets);
  return CUBLAS_STATUS_SUCCESS;
}

size_t cublasLtGetVersion() {
  const char* given = getenv("FAKE_VERSION");
  return given ? size_t(atoi(given)) : 130000;
}

extern "C" int cublasLtFakeCalls() {
  return g_calls;
}
extern "C" int cublasLtFakeNarrowCalls(bool chosen) {
  return (chosen ? g_targets_of_chosen : g_targets).calls;
}
extern "C" int cublasLtFakeLeastTarget(bool chosen) {
  return (chosen ? g_targets_of_chosen : g_targets).least;
}
