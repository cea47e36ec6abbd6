// cuBLASLt: handles, products with an epilogue, and the one algorithm that its heuristics find.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <limits>

#include "softgpu/libraries/cublas/lt.h"
#include "softgpu/libraries/cublas/products.h"

namespace tessera::softgpu::cublas {
namespace {

struct Epilogue {
  uint32_t number;  // cublasLtEpilogue_t
  Activation activation;
  bool bias;
};
constexpr Epilogue kEpilogues[] = {
    {CUBLASLT_EPILOGUE_DEFAULT, Activation::kNone, false},
    {CUBLASLT_EPILOGUE_BIAS, Activation::kNone, true},
    {CUBLASLT_EPILOGUE_RELU, Activation::kRelu, false},
    {CUBLASLT_EPILOGUE_RELU_BIAS, Activation::kRelu, true},
    {CUBLASLT_EPILOGUE_GELU, Activation::kGelu, false},
    {CUBLASLT_EPILOGUE_GELU_BIAS, Activation::kGelu, true},
};

const Epilogue* epilogue_of(uint32_t number) {
  for (const Epilogue& row : kEpilogues)
    if (row.number == number) return &row;
  return nullptr;
}

cudaDataType scale_type(ScalarType type) {
  switch (type) {
    case ScalarType::kF16:
      return CUDA_R_16F;
    case ScalarType::kF32:
      return CUDA_R_32F;
    case ScalarType::kF64:
      return CUDA_R_64F;
    case ScalarType::kComplexF32:
      return CUDA_C_32F;
    case ScalarType::kComplexF64:
      return CUDA_C_64F;
  }
  return CUDA_R_32F;
}

// A call's descriptors, and what follows from them.
struct Problem {
  const Operation* operation;
  const Layout *a, *b, *c, *d;
  Types types;
  Epilogue epilogue;
  Extent extent;
};

bool transposed(int32_t op) {
  return op != CUBLAS_OP_N;
}
bool is_operation(int32_t op) {
  return op == CUBLAS_OP_N || op == CUBLAS_OP_T || op == CUBLAS_OP_C;
}

bool valid(const Layout& x) {
  const uint64_t along = x.order == CUBLASLT_ORDER_ROW ? x.columns : x.rows;
  return x.leading >= 0 && uint64_t(x.leading) >= along && x.products >= 0;
}

// Every shape fits the others. Orders that are not computed have leading dimensions of their own and are not judged.
bool consistent(const Problem& p) {
  const Operation& op = *p.operation;
  if (!is_operation(op.op_a) || !is_operation(op.op_b) || !is_operation(op.op_c)) return false;
  for (const Layout* x : {p.a, p.b, p.c, p.d})
    if ((x->order == CUBLASLT_ORDER_COL || x->order == CUBLASLT_ORDER_ROW) && !valid(*x)) return false;
  const auto rows = [](const Layout& x, int32_t how) { return transposed(how) ? x.columns : x.rows; };
  const auto columns = [](const Layout& x, int32_t how) { return transposed(how) ? x.rows : x.columns; };
  return rows(*p.a, op.op_a) == p.d->rows && columns(*p.b, op.op_b) == p.d->columns &&
         columns(*p.a, op.op_a) == rows(*p.b, op.op_b) && p.c->rows == p.d->rows &&
         p.c->columns == p.d->columns && p.a->products == p.d->products && p.b->products == p.d->products &&
         p.c->products == p.d->products;
}

bool computed(const Layout& x, const Layout& d) {
  constexpr uint64_t kMost = std::numeric_limits<int32_t>::max();
  return (x.order == CUBLASLT_ORDER_COL || x.order == CUBLASLT_ORDER_ROW) && x.rows <= kMost &&
         x.columns <= kMost && x.plane_offset == 0 && x.batch_mode == d.batch_mode &&
         x.batch_mode <= CUBLASLT_BATCH_MODE_POINTER_ARRAY;
}

bool computed(const Operation& op) {
  const auto unset = [](const auto& list) { return std::ranges::all_of(list, [](auto x) { return !x; }); };
  return op.op_c == CUBLAS_OP_N && op.fill_mode == CUBLAS_FILL_MODE_FULL && unset(op.scale_modes) &&
         unset(op.scale_pointers) && !op.emulation &&
         (op.pointer_mode == CUBLASLT_POINTER_MODE_HOST || op.pointer_mode == CUBLASLT_POINTER_MODE_DEVICE);
}

bool find_types(Problem* p) {
  const cudaDataType a = cudaDataType(p->a->type), b = cudaDataType(p->b->type), d = cudaDataType(p->d->type);
  const auto types = types_of(a, b, d, cublasComputeType_t(p->operation->compute));
  const Epilogue* epilogue = epilogue_of(p->operation->epilogue);
  if (!types || !epilogue || p->c->type != p->d->type || p->operation->scale != scale_type(types->scalar))
    return false;
  p->types = *types, p->epilogue = *epilogue;
  const bool single = types->scalar == ScalarType::kF16 || types->scalar == ScalarType::kF32;
  if (epilogue->bias && p->operation->bias_type != -1 && p->operation->bias_type != d) return false;
  return single || epilogue->number == CUBLASLT_EPILOGUE_DEFAULT;
}

// Whether the product is one, and whether it is computed here. `name` is who asks.
cublasStatus_t prepare(const char* name, Problem* p) {
  if (!p->operation || !p->a || !p->b || !p->c || !p->d || !consistent(*p))
    return CUBLAS_STATUS_INVALID_VALUE;
  const bool layouts =
      computed(*p->a, *p->d) && computed(*p->b, *p->d) && computed(*p->c, *p->d) && computed(*p->d, *p->d);
  if (!layouts || !computed(*p->operation) || !find_types(p)) {
    static constinit std::atomic<bool> said = false;
    return cublasStatus_t(not_supported(name, " with these descriptors", &said));
  }
  p->extent = {int64_t(p->d->rows), int64_t(p->d->columns),
               int64_t(transposed(p->operation->op_a) ? p->a->rows : p->a->columns), p->d->products};
  return CUBLAS_STATUS_SUCCESS;
}

// Elements from one row to the next, and from one column to the next.
void steps(const Layout& x, int32_t op, int64_t* row, int64_t* column) {
  const bool down = (x.order == CUBLASLT_ORDER_COL) != transposed(op);
  *row = down ? 1 : x.leading, *column = down ? x.leading : 1;
}

GemmCall gemm_call(const Problem& p) {
  const Operation& op = *p.operation;
  GemmCall call{};
  steps(*p.a, op.op_a, &call.a_row, &call.a_column);
  steps(*p.b, op.op_b, &call.b_row, &call.b_column);
  steps(*p.c, CUBLAS_OP_N, &call.c_row, &call.c_column);
  steps(*p.d, CUBLAS_OP_N, &call.d_row, &call.d_column);
  call.a_product = p.a->stride, call.b_product = p.b->stride;
  call.c_product = p.c->stride, call.d_product = p.d->stride;
  call.by_pointers = p.d->batch_mode == CUBLASLT_BATCH_MODE_POINTER_ARRAY;
  call.conjugate_a = op.op_a == CUBLAS_OP_C, call.conjugate_b = op.op_b == CUBLAS_OP_C;
  call.activation = p.epilogue.activation;
  if (p.epilogue.bias) call.bias = op.bias, call.bias_product = op.bias_stride;
  return call;
}

// The only algorithm. An algorithm of the caller's is the one that he got from here.
constexpr uint64_t kAlgorithm = 0x7465737365726131;  // in cublasLtMatmulAlgo_t::data[0]
constexpr int kAlgorithmId = 0;

cublasStatus_t write_result(cublasLtMatmulHeuristicResult_t* result) {
  result->workspaceSize = 0;
  result->state = CUBLAS_STATUS_SUCCESS;
  result->wavesCount = 1;
  return CUBLAS_STATUS_SUCCESS;
}

bool types_computed(cublasComputeType_t compute, cudaDataType_t scale, cudaDataType_t a, cudaDataType_t b,
                    cudaDataType_t c, cudaDataType_t d) {
  const auto types = types_of(a, b, d, compute);
  return types && c == d && scale == scale_type(types->scalar);
}

std::atomic<size_t> g_cache_capacity = 0;  // kept for the getter; nothing is cached

}  // namespace
}  // namespace tessera::softgpu::cublas

using namespace tessera::softgpu::cublas;

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  if (!handle) return CUBLAS_STATUS_INVALID_VALUE;
  auto made = std::make_unique<cublasLtContext>();
  const cublasStatus_t status = open(made.get());
  if (status == CUBLAS_STATUS_SUCCESS) *handle = made.release();
  return status;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  const CurrentContext current(handle->context);
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void*, size_t, cudaStream_t stream) {
  // The handle may be one of cuBLAS, whose library has found the driver, while this one has not.
  if (!handle || !load_driver()) return CUBLAS_STATUS_NOT_INITIALIZED;
  Problem p{operation_of(operation), layout_of(a_layout), layout_of(b_layout), layout_of(c_layout),
            layout_of(d_layout)};
  if (!alpha || !beta || !a || !b || !d || (algorithm && algorithm->data[0] != kAlgorithm))
    return CUBLAS_STATUS_INVALID_VALUE;
  if (const cublasStatus_t status = prepare(__func__, &p); status != CUBLAS_STATUS_SUCCESS) return status;
  GemmCall call = gemm_call(p);
  const bool on_device = p.operation->pointer_mode == CUBLASLT_POINTER_MODE_DEVICE;
  call.alpha = scalar(alpha, p.types.scalar, on_device), call.beta = scalar(beta, p.types.scalar, on_device);
  const bool c_is_read = on_device || call.beta.real != 0 || call.beta.imaginary != 0;
  if ((c_is_read && !c) || (p.epilogue.bias && !call.bias)) return CUBLAS_STATUS_INVALID_VALUE;
  call.a = a, call.b = b, call.c = c, call.d = d;
  return launch_products(*handle, stream, p.types.kernel, p.extent, call);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int requested,
                                              cublasLtMatmulHeuristicResult_t results[], int* returned) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!preference || requested <= 0 || !results || !returned) return CUBLAS_STATUS_INVALID_VALUE;
  *returned = 0;
  Problem p{operation_of(operation), layout_of(a), layout_of(b), layout_of(c), layout_of(d)};
  if (const cublasStatus_t status = prepare(__func__, &p); status != CUBLAS_STATUS_SUCCESS) return status;
  results[0] = {.algo = {{kAlgorithm}}};
  *returned = 1;
  return write_result(&results[0]);
}

cublasStatus_t cublasLtMatmulAlgoGetIds(cublasLtHandle_t handle, cublasComputeType_t compute,
                                        cudaDataType_t scale, cudaDataType_t a, cudaDataType_t b,
                                        cudaDataType_t c, cudaDataType_t d, int requested, int ids[],
                                        int* returned) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (requested <= 0 || !ids || !returned) return CUBLAS_STATUS_INVALID_VALUE;
  *returned = types_computed(compute, scale, a, b, c, d) ? 1 : 0;
  if (*returned == 0) return CUBLAS_STATUS_NOT_SUPPORTED;
  ids[0] = kAlgorithmId;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoInit(cublasLtHandle_t handle, cublasComputeType_t compute,
                                      cudaDataType_t scale, cudaDataType_t a, cudaDataType_t b,
                                      cudaDataType_t c, cudaDataType_t d, int id,
                                      cublasLtMatmulAlgo_t* algorithm) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!algorithm || id != kAlgorithmId) return CUBLAS_STATUS_INVALID_VALUE;
  if (!types_computed(compute, scale, a, b, c, d)) return CUBLAS_STATUS_NOT_SUPPORTED;
  *algorithm = {{kAlgorithm}};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t* algorithm,
                                       cublasLtMatmulHeuristicResult_t* result) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!algorithm || algorithm->data[0] != kAlgorithm || !result) return CUBLAS_STATUS_INVALID_VALUE;
  Problem p{operation_of(operation), layout_of(a), layout_of(b), layout_of(c), layout_of(d)};
  if (const cublasStatus_t status = prepare(__func__, &p); status != CUBLAS_STATUS_SUCCESS) return status;
  return write_result(result);
}

const char* cublasLtGetStatusName(cublasStatus_t status) {
  return status_name(status);
}
const char* cublasLtGetStatusString(cublasStatus_t status) {
  return status_text(status);
}
size_t cublasLtGetVersion() {
  return CUBLAS_VERSION;
}
size_t cublasLtGetCudartVersion() {
  return CUDA_VERSION;
}
cublasStatus_t cublasLtGetProperty(libraryPropertyType type, int* value) {
  return library_property(type, value);
}

// Relaxed: nothing else is published by it.
cublasStatus_t cublasLtHeuristicsCacheGetCapacity(size_t* capacity) {
  if (!capacity) return CUBLAS_STATUS_INVALID_VALUE;
  *capacity = g_cache_capacity.load(std::memory_order_relaxed);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtHeuristicsCacheSetCapacity(size_t capacity) {
  g_cache_capacity.store(capacity, std::memory_order_relaxed);
  return CUBLAS_STATUS_SUCCESS;
}

// Nothing is logged.
cublasStatus_t cublasLtLoggerSetCallback(cublasLtLoggerCallback_t) {
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtLoggerSetFile(FILE*) {
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtLoggerOpenFile(const char*) {
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtLoggerSetLevel(int) {
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtLoggerSetMask(int) {
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtLoggerForceDisable() {
  return CUBLAS_STATUS_SUCCESS;
}
