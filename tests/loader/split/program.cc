// Random products of every form, each three times with a wait in between; prints status and bits of all that they may write.
//   program SEED PRODUCTS         results on standard output, how often the library was asked on standard error;
//                                 PROGRAM_SMS: the SM target that it sets itself
//   program scalars               one product, with C read and not
//   program workspace             one product, with memory of the program's to work in, and without once more
//   program plain                 one product, of zeros, of ones and of whole numbers before others
//   program refused               arguments that the library refuses
//   program large                 one product; how much memory trials held
//   program short                 one product, while whose trial the program is refused memory
//   program threads               one product, while another thread is refused memory all the time
//   program reset                 one product, while whose trial its context ends
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <atomic>
#include <complex>
#include <cstdio>
#include <iterator>
#include <memory>
#include <thread>
#include <vector>

#include "tests/loader/split/program.h"

extern "C" {
int cublasFakeCalls();
#define TS_ONE(symbol, T, Int) \
  int symbol(const void*, int, int, Int, Int, Int, const T*, const T*, Int, const T*, Int, const T*, T*, Int);
TS_ONE(cublasSgemm_v2, float, int)
TS_ONE(cublasSgemm_v2_64, float, int64_t)
TS_ONE(cublasDgemm_v2, double, int)
TS_ONE(cublasCgemm_v2, std::complex<float>, int)
TS_ONE(cublasZgemm_v2_64, std::complex<double>, int64_t)
#define TS_STRIDED(symbol, T, Int)                                                                    \
  int symbol(const void*, int, int, Int, Int, Int, const T*, const T*, Int, long long, const T*, Int, \
             long long, const T*, T*, Int, long long, Int);
TS_STRIDED(cublasSgemmStridedBatched, float, int)
TS_STRIDED(cublasDgemmStridedBatched_64, double, int64_t)
int cublasSgemmBatched(const void*, int, int, int, int, int, const float*, const float* const[], int,
                       const float* const[], int, const float*, float* const[], int, int);
#define TS_GROUPS(symbol, T, Int)                                                                     \
  int symbol(const void*, const int[], const int[], const Int[], const Int[], const Int[], const T[], \
             const T* const[], const Int[], const T* const[], const Int[], const T[], T* const[],     \
             const Int[], Int, const Int[]);
TS_GROUPS(cublasSgemmGroupedBatched, float, int)
TS_GROUPS(cublasDgemmGroupedBatched_64, double, int64_t)
int cublasGemmGroupedBatchedEx(const void*, const int[], const int[], const int[], const int[], const int[],
                               const void*, const void* const[], int, const int[], const void* const[], int,
                               const int[], const void*, void* const[], int, const int[], int, const int[],
                               int);
int cublasFakeNarrowCalls();
int cublasSetStream_v2(void*, void*);
int cublasSetWorkspace_v2(void*, void*, size_t);
int cublasSetSmCountTarget(const void*, int);
int cublasGetSmCountTarget(const void*, int*);
int cublasGemmEx(const void*, int, int, int, int, int, const void*, const void*, int, int, const void*, int,
                 int, const void*, void*, int, int, int, int);
}

namespace {

int handle = 0;

struct Sizes {
  int64_t m, n, k, lda, ldb, ldc, count, sa, sb, sc;
  int ta, tb;
};
Sizes random_sizes(bool batch) {
  Sizes s{};
  s.m = in(1, batch ? 20 : 300);
  s.n = in(1, batch ? 20 : 300);
  s.k = in(1, 12);
  s.count = batch ? in(1, 20) : 1;
  s.ta = int(in(0, 2));
  s.tb = int(in(0, 2));
  s.lda = (s.ta ? s.k : s.m) + in(0, 5);
  s.ldb = (s.tb ? s.n : s.k) + in(0, 5);
  s.ldc = s.m + in(0, 5);
  s.sa = in(0, 3) ? s.lda * (s.ta ? s.m : s.k) + in(0, 7) : 0;  // 0: one for all
  s.sb = s.ldb * (s.tb ? s.k : s.n) + in(0, 7);
  s.sc = s.ldc * s.n + in(0, 7);
  return s;
}

template <class T>
struct Operands {
  explicit Operands(const Sizes& s)
      : a(s.lda * (s.ta ? s.m : s.k) + s.sa * (s.count - 1)),
        b(s.ldb * (s.tb ? s.k : s.n) + s.sb * (s.count - 1)),
        c(s.ldc * s.n + s.sc * (s.count - 1)) {
    random_value(alpha);
    if (in(0, 1)) random_value(beta);
  }
  Memory<T> a, b, c;
  T alpha{}, beta{};
};

template <class T, class Call>
void three_times(const char* name, const Sizes& s, Call&& call) {
  const Operands<T> o(s);
  for (int i = 0; i < 3; i++) {
    const int status = call(o);
    wait_for_gpu();
    printf("%s %ldx%ldx%ld*%ld %d %016lx\n", name, long(s.m), long(s.n), long(s.k), long(s.count), status,
           o.c.bits());
  }
}

template <class T, class Int, class F>
void one(const char* name, F* function) {
  const Sizes s = random_sizes(false);
  three_times<T>(name, s, [&](const Operands<T>& o) {
    return function(&handle, s.ta, s.tb, Int(s.m), Int(s.n), Int(s.k), &o.alpha, o.a.data(), Int(s.lda),
                    o.b.data(), Int(s.ldb), &o.beta, o.c.data(), Int(s.ldc));
  });
}
template <class T, class Int, class F>
void strided(const char* name, F* function) {
  const Sizes s = random_sizes(true);
  three_times<T>(name, s, [&](const Operands<T>& o) {
    return function(&handle, s.ta, s.tb, Int(s.m), Int(s.n), Int(s.k), &o.alpha, o.a.data(), Int(s.lda), s.sa,
                    o.b.data(), Int(s.ldb), s.sb, &o.beta, o.c.data(), Int(s.ldc), s.sc, Int(s.count));
  });
}
void by_pointers() {
  const Sizes s = random_sizes(true);
  three_times<float>("cublasSgemmBatched", s, [&](const Operands<float>& o) {
    std::vector<const float*> a, b;
    std::vector<float*> c;
    for (int64_t i = 0; i < s.count; i++) {
      a.push_back(o.a.data() + i * s.sa);
      b.push_back(o.b.data() + i * s.sb);
      c.push_back(o.c.data() + i * s.sc);
    }
    return cublasSgemmBatched(&handle, s.ta, s.tb, int(s.m), int(s.n), int(s.k), &o.alpha, a.data(),
                              int(s.lda), b.data(), int(s.ldb), &o.beta, c.data(), int(s.ldc), int(s.count));
  });
}
void by_types() {
  const Sizes s = random_sizes(false);
  three_times<float>("cublasGemmEx", s, [&](const Operands<float>& o) {
    return cublasGemmEx(&handle, s.ta, s.tb, int(s.m), int(s.n), int(s.k), &o.alpha, o.a.data(), 0,
                        int(s.lda), o.b.data(), 0, int(s.ldb), &o.beta, o.c.data(), 0, int(s.ldc), 68, -1);
  });
}

// The same product three times, at the same places in memory.
struct OneProduct {
  static constexpr int kSize = 256, kDepth = 12;
  Operands<float> o{
      {.m = kSize, .n = kSize, .k = kDepth, .lda = kSize, .ldb = kDepth, .ldc = kSize, .count = 1}};
  void once(const char* name) const {
    const int status = cublasSgemm_v2(&handle, 0, 0, kSize, kSize, kDepth, &o.alpha, o.a.data(), kSize,
                                      o.b.data(), kDepth, &o.beta, o.c.data(), kSize);
    printf("%s %d %016lx\n", name, status, o.c.bits());
  }
  void three_times(const char* name) const {
    for (int i = 0; i < 3; i++) {
      once(name);
      wait_for_gpu();
    }
  }
};
void scalars() {
  OneProduct product;
  product.o.beta = 0;
  product.three_times("C is not read");
  product.o.beta = 0.5f;
  product.three_times("C is read");
}
void workspace() {
  const OneProduct product;
  char memory[64];
  product.three_times("the library's own");
  cublasSetWorkspace_v2(&handle, memory, sizeof memory);
  product.three_times("the program's");
  cublasSetStream_v2(&handle, nullptr);
  product.three_times("the library's own again");
}

void plain() {
  OneProduct product;
  product.o.alpha = 1;
  product.o.beta = 0;
  const auto once_of = [&](const char* name, auto&& value) {
    for (const auto* x : {&product.o.a, &product.o.b})
      for (size_t i = 0; i < x->size; i++) x->data()[i] = value(i);
    product.once(name);
    wait_for_gpu();
  };
  once_of("zeros", [](size_t) { return 0.0f; });
  once_of("ones", [](size_t) { return 1.0f; });
  once_of("whole numbers", [](size_t i) { return float(i % 50); });
  for (int i = 0; i < 3; i++) {
    once_of("any numbers", [](size_t) {
      float x = 0;
      random_value(x);
      return x;
    });
  }
}

// A function of the reader, or null without one.
template <class Function>
Function* of_reader(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}
void large() {
  const OneProduct product;
  fake_most_bytes();
  product.three_times("large");
  fprintf(stderr, "most_bytes %d\n", fake_most_bytes());
}
// The trial waits for the program to wait.
void pending(const OneProduct& product) {
  product.once("pending");
  fprintf(stderr, "held %d\n", fake_allocations() - 3);
}
void memory_is_short() {
  const OneProduct product;
  const auto refused = of_reader<unsigned()>("reader_memory_short");
  if (refused) fprintf(stderr, "nothing_to_give %u\n", refused());
  pending(product);
  if (refused) fprintf(stderr, "given %u\n", refused());
  fprintf(stderr, "held_then %d\n", fake_allocations() - 3);
  product.three_times("afterwards");
}
void memory_is_short_in_another_thread() {
  const OneProduct product;
  const auto refused = of_reader<unsigned()>("reader_memory_short");
  std::atomic<bool> stop{false};
  std::thread other([&] {
    while (refused && !stop) refused();
  });
  for (int i = 0; i < 20; i++) product.three_times("meanwhile");
  stop = true;
  other.join();
  product.three_times("afterwards");
}
void context_ends() {
  {
    const OneProduct product;
    pending(product);
    void* context = nullptr;
    cuCtxGetCurrent(&context);
    fake_reset();
    if (const auto ended = of_reader<void(const void*)>("reader_context_ended")) ended(context);
  }
  OneProduct().three_times("in the next context");
}

// Arguments of a call of groups, and all C one behind the other.
template <class T, class Int>
struct Groups {
  explicit Groups(int64_t count) {
    int64_t a_elements = 0, b_elements = 0, c_elements = 0;
    for (int64_t g = 0; g < count; g++) {
      const Sizes s = random_sizes(true);
      ta.push_back(s.ta), tb.push_back(s.tb);
      m.push_back(Int(s.m)), n.push_back(Int(s.n)), k.push_back(Int(s.k));
      lda.push_back(Int(s.lda)), ldb.push_back(Int(s.ldb)), ldc.push_back(Int(s.ldc));
      size.push_back(Int(s.count));
      random_value(alpha.emplace_back());
      random_value(beta.emplace_back());
      products += s.count;
      a_elements = std::max(a_elements, s.lda * (s.ta ? s.m : s.k));
      b_elements = std::max(b_elements, s.ldb * (s.tb ? s.k : s.n));
      c_elements = std::max(c_elements, s.ldc * s.n);
    }
    a_all = std::make_unique<Memory<T>>(a_elements + products);
    b_all = std::make_unique<Memory<T>>(b_elements + products);
    c_all = std::make_unique<Memory<T>>(c_elements * products);
    for (int64_t i = 0; i < products; i++) {
      a.push_back(a_all->data() + i);
      b.push_back(b_all->data() + i);
      c.push_back(c_all->data() + i * c_elements);
    }
  }
  std::vector<int> ta, tb;
  std::vector<Int> m, n, k, lda, ldb, ldc, size;
  std::vector<T> alpha, beta;
  std::unique_ptr<Memory<T>> a_all, b_all, c_all;
  std::vector<const T*> a, b;
  std::vector<T*> c;
  int64_t products = 0;
};

template <class T, class Int, class Call>
void groups(const char* name, Call&& call) {
  const Groups<T, Int> g(in(1, 9));
  for (int i = 0; i < 3; i++) {
    const int status = call(g);
    wait_for_gpu();
    printf("%s %zu groups, %ld products %d %016lx\n", name, g.m.size(), long(g.products), status,
           g.c_all->bits());
  }
}
template <class T, class Int, class F>
void groups_of_one_type(const char* name, F* function) {
  groups<T, Int>(name, [&](const Groups<T, Int>& g) {
    return function(&handle, g.ta.data(), g.tb.data(), g.m.data(), g.n.data(), g.k.data(), g.alpha.data(),
                    g.a.data(), g.lda.data(), g.b.data(), g.ldb.data(), g.beta.data(), g.c.data(),
                    g.ldc.data(), Int(g.m.size()), g.size.data());
  });
}
void groups_by_types() {
  groups<double, int>("cublasGemmGroupedBatchedEx", [&](const Groups<double, int>& g) {
    return cublasGemmGroupedBatchedEx(&handle, g.ta.data(), g.tb.data(), g.m.data(), g.n.data(), g.k.data(),
                                      g.alpha.data(), reinterpret_cast<const void* const*>(g.a.data()), 1,
                                      g.lda.data(), reinterpret_cast<const void* const*>(g.b.data()), 1,
                                      g.ldb.data(), g.beta.data(), reinterpret_cast<void* const*>(g.c.data()),
                                      1, g.ldc.data(), int(g.m.size()), g.size.data(), 70);
  });
}

// 300 rows in a matrix of 200: the library refuses the whole, but would take a piece of it.
int refused() {
  Memory<float> x(300 * 300);
  const float one = 1;
  const auto ask = [&](int ta, int tb, int m, int n, int k, int lda, int ldb, int ldc) {
    printf("%d\n",
           cublasSgemm_v2(&handle, ta, tb, m, n, k, &one, x.data(), lda, x.data(), ldb, &one, x.data(), ldc));
  };
  ask(0, 0, 300, 8, 8, 200, 300, 300);
  ask(0, 0, 300, 8, 8, 300, 8, 200);
  ask(0, 1, 8, 300, 8, 8, 200, 8);
  ask(5, 0, 300, 300, 8, 300, 300, 300);
  ask(0, 0, 300, 300, -1, 300, 300, 300);
  printf("%d\n",
         cublasSgemm_v2(nullptr, 0, 0, 300, 300, 8, &one, x.data(), 300, x.data(), 300, &one, x.data(), 300));
  printf("%016lx\n", x.bits());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && strcmp(argv[1], "refused") == 0) return refused();
  const struct {
    const char* name;
    void (*run)();
  } one_product[] = {{"scalars", scalars},       {"workspace", workspace},
                     {"plain", plain},           {"large", large},
                     {"short", memory_is_short}, {"threads", memory_is_short_in_another_thread},
                     {"reset", context_ends}};
  const auto* named = std::find_if(std::begin(one_product), std::end(one_product),
                                   [&](const auto& x) { return argc == 2 && strcmp(argv[1], x.name) == 0; });
  if (argc != 3 && named == std::end(one_product)) return 2;
  if (named != std::end(one_product)) named->run();
  if (argc == 3) g_random.seed(strtoull(argv[1], nullptr, 10));
  if (const char* target = getenv("PROGRAM_SMS")) cublasSetSmCountTarget(&handle, atoi(target));
  for (int i = 0; argc == 3 && i < atoi(argv[2]); i++) {
    one<float, int>("cublasSgemm_v2", cublasSgemm_v2);
    one<float, int64_t>("cublasSgemm_v2_64", cublasSgemm_v2_64);
    one<double, int>("cublasDgemm_v2", cublasDgemm_v2);
    one<std::complex<float>, int>("cublasCgemm_v2", cublasCgemm_v2);
    one<std::complex<double>, int64_t>("cublasZgemm_v2_64", cublasZgemm_v2_64);
    strided<float, int>("cublasSgemmStridedBatched", cublasSgemmStridedBatched);
    strided<double, int64_t>("cublasDgemmStridedBatched_64", cublasDgemmStridedBatched_64);
    by_pointers();
    by_types();
    groups_of_one_type<float, int>("cublasSgemmGroupedBatched", cublasSgemmGroupedBatched);
    groups_of_one_type<double, int64_t>("cublasDgemmGroupedBatched_64", cublasDgemmGroupedBatched_64);
    groups_by_types();
  }
  int target = 0;
  cublasGetSmCountTarget(&handle, &target);
  fprintf(stderr, "narrow_calls %d\ntarget %d\n", cublasFakeNarrowCalls(), target);
  report(cublasFakeCalls());
}
