// Random products of cuBLASLt, in every order and transposition, each three times with a wait in between; prints status and bits of
// all that they may write.
//   program_lt SEED PRODUCTS    results on standard output, how often the library was asked on standard error; PROGRAM_SMS: the SM
//                               target of its descriptors
//   program_lt threads          some of these in four threads at once
//   program_lt uncut            products that must stay whole
//   program_lt refused          arguments that the library refuses
#include <cublasLt.h>
#include <string.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/loader/split/program.h"

extern "C" {
int cublasLtFakeCalls();
int cublasLtFakeNarrowCalls(bool chosen);
int cublasLtFakeLeastTarget(bool chosen);
}

namespace {

std::atomic<int> g_changed{0};  // descriptors of products that are not as they were before their call

int g_handle = 0;
cublasLtHandle_t handle() {
  return reinterpret_cast<cublasLtHandle_t>(&g_handle);
}
const cublasLtMatmulAlgo_t kAlgorithm = {{0x616c676f}};

struct Product {
  Product() { cublasLtMatmulDescCreate(&descriptor, CUBLAS_COMPUTE_32F, CUDA_R_32F); }
  ~Product() { cublasLtMatmulDescDestroy(descriptor); }
  Product(const Product&) = delete;
  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, T value) {
    if (cublasLtMatmulDescSetAttribute(descriptor, attribute, &value, sizeof value) != 0) abort();
  }
  cublasLtMatmulDesc_t descriptor = nullptr;
};

// rows x columns of op(X), `products` times, in memory of its own.
struct Operand {
  Operand(int64_t rows, int64_t columns, int64_t products, bool by_rows, bool transposed, bool one_for_all) {
    if (transposed) std::swap(rows, columns);
    const int64_t fast = by_rows ? columns : rows, slow = by_rows ? rows : columns;
    const int64_t leading = fast + in(0, 5), one = leading * slow + in(0, 7), stride = one_for_all ? 0 : one;
    cublasLtMatrixLayoutCreate(&layout, CUDA_R_32F, uint64_t(rows), uint64_t(columns), leading);
    set(CUBLASLT_MATRIX_LAYOUT_ORDER, int32_t(by_rows ? CUBLASLT_ORDER_ROW : CUBLASLT_ORDER_COL));
    set(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, int32_t(products));
    set(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, stride);
    memory.emplace(one + stride * (products - 1));
  }
  ~Operand() { cublasLtMatrixLayoutDestroy(layout); }
  Operand(const Operand&) = delete;
  template <class T>
  void set(cublasLtMatrixLayoutAttribute_t attribute, T value) {
    if (cublasLtMatrixLayoutSetAttribute(layout, attribute, &value, sizeof value) != 0) abort();
  }
  float* data() const { return memory->data(); }
  cublasLtMatrixLayout_t layout = nullptr;
  std::optional<Memory<float>> memory;
};

bool coin() {
  return in(0, 1) == 1;
}

// One random product.
class Call {
 public:
  // Calls it so often, each time with a wait behind, and tells what was written.
  std::string run(int times) {
    std::string out;
    for (int i = 0; i < times; i++) {
      const cublasLtMatmulDescOpaque_t before = *product_.descriptor;
      const int status = cublasLtMatmul(handle(), product_.descriptor, &alpha_, a_.data(), a_.layout,
                                        b_.data(), b_.layout, &beta_,
                                        where_ == kIsD     ? d_.data()
                                        : where_ == kApart ? c_.data()
                                                           : nullptr,
                                        where_ == kIsD ? d_.layout : c_.layout, d_.data(), d_.layout,
                                        chosen_ ? &kAlgorithm : nullptr, nullptr, 0, nullptr);
      g_changed += memcmp(&before, product_.descriptor, sizeof before) != 0;
      wait_for_gpu();
      char line[100];
      snprintf(line, sizeof line, "%ldx%ldx%ld*%ld %d %016lx\n", long(m_), long(n_), long(k_), long(count_),
               status, d_.memory->bits());
      out += line;
    }
    return out;
  }
  Call() {
    product_.set(CUBLASLT_MATMUL_DESC_TRANSA, int32_t(ta_ ? CUBLAS_OP_T : CUBLAS_OP_N));
    product_.set(CUBLASLT_MATMUL_DESC_TRANSB, int32_t(tb_ ? CUBLAS_OP_C : CUBLAS_OP_N));
    constexpr cublasLtEpilogue_t kEpilogues[] = {CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_RELU,
                                                 CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_RELU_BIAS};
    product_.set(CUBLASLT_MATMUL_DESC_EPILOGUE, uint32_t(kEpilogues[in(0, 3)]));
    product_.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(bias_.data()));
    product_.set(CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE, bias_stride_);
    if (const char* sms = getenv("PROGRAM_SMS"))
      product_.set(CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, int32_t(atoi(sms)));
    random_value(alpha_);
    if (where_ != kNone && coin()) random_value(beta_);
  }

 private:
  enum Where : int64_t { kIsD, kApart, kNone };  // C
  const bool batch_ = coin();
  const int64_t m_ = in(1, batch_ ? 20 : 400), n_ = in(1, batch_ ? 20 : 400), k_ = in(1, 12),
                count_ = batch_ ? in(1, 20) : 1;
  const bool ta_ = coin(), tb_ = coin();
  const Operand a_{m_, k_, count_, coin(), ta_, in(0, 3) == 0}, b_{k_, n_, count_, coin(), tb_, false},
      c_{m_, n_, count_, coin(), false, in(0, 3) == 0}, d_{m_, n_, count_, coin(), false, false};
  const int64_t bias_stride_ = coin() ? m_ : 0;
  const Memory<float> bias_{m_ + bias_stride_ * (count_ - 1)};
  const Where where_ = Where(in(0, 2));
  const bool chosen_ = coin();
  Product product_;
  float alpha_ = 0, beta_ = 0;
};

// The same products in several threads at once, each in memory of its own.
void in_threads() {
  constexpr uint64_t kSeeds = 12;
  constexpr int kThreads = 4, kTimes = 10;
  for (uint64_t seed = 1; seed <= kSeeds; seed++) {
    std::vector<std::unique_ptr<Call>> calls;
    for (int i = 0; i < kThreads; i++) {
      g_random.seed(seed);
      calls.push_back(std::make_unique<Call>());
    }
    std::vector<std::string> outputs(calls.size());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < calls.size(); i++)
      threads.emplace_back([&, i] { outputs[i] = calls[i]->run(kTimes); });
    for (std::thread& thread : threads) thread.join();
    for (const std::string& output : outputs) printf("%s", output.c_str());
  }
}

// 512 x 512 in one piece, whatever `change` made of it.
template <class Change>
void whole(Change&& change) {
  const float one = 1;
  Operand a(512, 8, 1, false, false, false), b(8, 512, 1, false, false, false),
      d(512, 512, 1, false, false, false);
  Product product;
  change(product, a, b, d);
  const int before = cublasLtFakeCalls();
  cublasLtMatmul(handle(), product.descriptor, &one, a.data(), a.layout, b.data(), b.layout, &one, d.data(),
                 d.layout, d.data(), d.layout, &kAlgorithm, nullptr, 0, nullptr);
  wait_for_gpu();
  printf("%d\n", cublasLtFakeCalls() - before);
}

void uncut() {
  // Products that write beside D, or whose descriptor names what a piece would have to move in.
  const auto with = [](cublasLtMatmulDescAttributes_t attribute, auto value) {
    whole([&](Product& p, auto&...) { p.set(attribute, value); });
  };
  float factor = 1;
  void* const pointer = &factor;
  for (const cublasLtEpilogue_t epilogue :
       {CUBLASLT_EPILOGUE_RELU_AUX, CUBLASLT_EPILOGUE_GELU_AUX, CUBLASLT_EPILOGUE_DRELU,
        CUBLASLT_EPILOGUE_DGELU_BGRAD, CUBLASLT_EPILOGUE_BGRADA, CUBLASLT_EPILOGUE_BGRADB})
    with(CUBLASLT_MATMUL_DESC_EPILOGUE, uint32_t(epilogue));
  for (const cublasLtMatmulDescAttributes_t attribute :
       {CUBLASLT_MATMUL_DESC_AMAX_D_POINTER, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_AMAX_POINTER,
        CUBLASLT_MATMUL_DESC_D_OUT_SCALE_POINTER, CUBLASLT_MATMUL_DESC_EMULATION_DESCRIPTOR})
    with(attribute, pointer);
  for (const cublasLtMatmulDescAttributes_t attribute :
       {CUBLASLT_MATMUL_DESC_A_SCALE_MODE, CUBLASLT_MATMUL_DESC_B_SCALE_MODE,
        CUBLASLT_MATMUL_DESC_C_SCALE_MODE, CUBLASLT_MATMUL_DESC_D_SCALE_MODE,
        CUBLASLT_MATMUL_DESC_D_OUT_SCALE_MODE})
    with(attribute, int32_t(CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F));
  with(CUBLASLT_MATMUL_DESC_POINTER_MODE, int32_t(CUBLASLT_POINTER_MODE_DEVICE_VECTOR));
  with(CUBLASLT_MATMUL_DESC_FILL_MODE, int32_t(CUBLAS_FILL_MODE_LOWER));
  with(CUBLASLT_MATMUL_DESC_TRANSC, int32_t(CUBLAS_OP_T));
  with(CUBLASLT_MATMUL_DESC_COMPUTE_TYPE, int32_t(CUBLAS_COMPUTE_64F_EMULATED_FIXEDPOINT));
  whole([](Product&, Operand& a, auto&...) { a.set(CUBLASLT_MATRIX_LAYOUT_PLANE_OFFSET, int64_t{512}); });
  whole([](Product&, Operand& a, auto&...) {
    a.set(CUBLASLT_MATRIX_LAYOUT_BATCH_MODE, uint32_t(CUBLASLT_BATCH_MODE_POINTER_ARRAY));
  });
  whole([](Product&, Operand&, Operand&, Operand& d) {
    d.set(CUBLASLT_MATRIX_LAYOUT_ORDER, int32_t(CUBLASLT_ORDER_COL32));
  });
}

// The library refuses the whole, but would take a piece of it.
void refused() {
  const float one = 1;
  const Operand a(300, 8, 1, false, false, false), b(8, 300, 1, false, false, false),
      d(300, 300, 1, false, false, false), narrow(300, 200, 1, false, false, false),
      flat(200, 300, 1, false, false, false);
  Operand low(300, 300, 1, false, false, false);
  low.set(CUBLASLT_MATRIX_LAYOUT_LD, int64_t{200});
  Product product;
  const auto ask = [&](const Operand& x, const Operand& y, const Operand& z, const Operand& result) {
    printf("%d\n",
           cublasLtMatmul(handle(), product.descriptor, &one, x.data(), x.layout, y.data(), y.layout, &one,
                          z.data(), z.layout, result.data(), result.layout, nullptr, nullptr, 0, nullptr));
  };
  ask(a, narrow, d, d);
  ask(flat, b, d, d);
  ask(a, b, narrow, d);
  ask(a, b, flat, d);
  ask(a, b, low, d);
  ask(a, b, d, low);
  ask(a, b, d, narrow);
  printf("%016lx\n", d.memory->bits());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && strcmp(argv[1], "refused") == 0) {
    refused();
  } else if (argc == 2 && strcmp(argv[1], "uncut") == 0) {
    uncut();
  } else if (argc == 2 && strcmp(argv[1], "threads") == 0) {
    in_threads();
  } else if (argc == 3) {
    g_random.seed(strtoull(argv[1], nullptr, 10));
    for (int i = 0; i < atoi(argv[2]); i++) printf("%s", Call().run(3).c_str());
  } else {
    return 2;
  }
  report(cublasLtFakeCalls());
  fprintf(stderr, "changed %d\n", g_changed.load());
  for (const bool chosen : {false, true})
    fprintf(stderr, "%snarrow_calls %d\n%sleast_target %d\n", chosen ? "chosen_" : "",
            cublasLtFakeNarrowCalls(chosen), chosen ? "chosen_" : "", cublasLtFakeLeastTarget(chosen));
}
