// Parsing PTX and making slicing variants: megabytes of PTX per second on one core, and the most memory in
// use meanwhile over the size of the input. Input: the PTX in the programs that the build makes (samples, and
// the algorithms of CUB, Thrust and cooperative groups).
#include <malloc.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <new>
#include <sstream>

#include "kernels/cache/rewritten.h"
#include "kernels/cache/store.h"
#include "kernels/image/image.h"
#include "kernels/ptx/parser.h"
#include "kernels/ptx/printer.h"
#include "kernels/slice/slice.h"
#include "tests/bench/timing.h"

namespace {

// Bytes in use, counted in one round of its own: the timed ones do not pay for it.
bool g_counting = false;
size_t g_live = 0, g_peak = 0;

std::vector<std::string> texts() {
  std::vector<std::string> out;
  for (const char* path : {TS_SAMPLE_1, TS_SAMPLE_2, TS_ALGORITHMS}) {
    std::ifstream in(path, std::ios::binary);
    std::ostringstream bytes;
    bytes << in.rdbuf();
    const std::string file = bytes.str();
    auto entries = tessera::image::read({reinterpret_cast<const uint8_t*>(file.data()), file.size()});
    if (!in || !entries.ok()) {
      fprintf(stderr, "bench_slice: %s: no PTX in it\n", path);
      exit(1);
    }
    for (const auto& e : *entries)
      if (e.kind == tessera::image::EntryKind::kPtx) out.emplace_back(e.payload.begin(), e.payload.end());
  }
  return out;
}

}  // namespace

// Counted, so that memory is what the code asks for and not what the machine's allocator keeps.
void* operator new(size_t bytes) {
  void* p = std::malloc(bytes);
  if (!p) abort();
  if (g_counting) [[unlikely]] {
    g_live += malloc_usable_size(p);
    g_peak = std::max(g_peak, g_live);
  }
  return p;
}
void operator delete(void* p) noexcept {
  if (g_counting && p) [[unlikely]]
    g_live -= malloc_usable_size(p);
  std::free(p);
}
void operator delete(void* p, size_t) noexcept {
  operator delete(p);
}

// Measures the second load of the same text instead: the kept result is read, checked and decoded.
static double cached_mb_per_s(const std::vector<std::string>& input) {
  namespace cache = tessera::cache;
  std::string folder = "/tmp/bench-slice-XXXXXX";
  if (!mkdtemp(folder.data())) return 0;
  const cache::Store store(folder, size_t(1) << 30);
  std::vector<double> ns;
  size_t bytes = 0;
  for (const std::string& text : input) {
    bytes += text.size();
    auto module = tessera::ptx::parse(text);
    tessera::slice::add_variants(*module);
    (void)store.save(cache::key_of(text, 13000),
                     cache::encode({.kernels = {}, .text = tessera::ptx::print(*module)}));
  }
  for (int round = 0; round < 16; round++) {
    const uint64_t start = tessera::base::now_ns();
    for (const std::string& text : input) {
      auto kept = store.load(cache::key_of(text, 13000));
      if (!kept || !cache::decode(*kept)) return 0;
    }
    ns.push_back(double(tessera::base::now_ns() - start));
  }
  std::filesystem::remove_all(folder);
  return double(bytes) * 1e3 / tessera::bench::quantile(ns, 0.5);
}

int main() {
  const std::vector<std::string> input = texts();
  size_t bytes = 0;
  for (const std::string& text : input) bytes += text.size();
  std::vector<double> parse_ns, rewrite_ns, print_ns;
  double worst_memory = 0;
  size_t n_cut = 0, n_kernels = 0;
  for (int round = 0; round < 16; round++) {
    g_counting = round == 0;
    double parse = 0, rewrite = 0, print = 0;
    n_cut = n_kernels = 0;
    for (const std::string& text : input) {
      g_live = g_peak = 0;
      uint64_t start = tessera::base::now_ns();
      auto module = tessera::ptx::parse(text);
      parse += double(tessera::base::now_ns() - start);
      if (!module.ok()) {
        fprintf(stderr, "bench_slice: %s\n", module.error().text.c_str());
        return 1;
      }
      start = tessera::base::now_ns();
      const auto reports = tessera::slice::add_variants(*module);
      rewrite += double(tessera::base::now_ns() - start);
      start = tessera::base::now_ns();
      const std::string out = tessera::ptx::print(*module);
      print += double(tessera::base::now_ns() - start);
      n_kernels += reports.size();
      for (const auto& r : reports) n_cut += r.verdict.may_cut();
      if (g_counting && text.size() > 100'000)  // small ones pay for tables that do not grow
        worst_memory = std::max(worst_memory, double(g_peak) / double(text.size()));
    }
    if (g_counting) continue;
    parse_ns.push_back(parse);
    rewrite_ns.push_back(rewrite);
    print_ns.push_back(print);
  }
  const auto mb_per_s = [&](const std::vector<double>& ns) {
    return double(bytes) * 1e3 / tessera::bench::quantile(ns, 0.5);
  };
  tessera::bench::Report report;
  report.add("slice.input_bytes", double(bytes));
  report.add("slice.kernels", double(n_kernels));
  report.add("slice.kernels_cut", double(n_cut));
  report.add("slice.parse_mb_per_s", mb_per_s(parse_ns));
  report.add("slice.rewrite_mb_per_s", mb_per_s(rewrite_ns));
  report.add("slice.print_mb_per_s", mb_per_s(print_ns));
  report.add("slice.memory_over_input", worst_memory);
  report.add("slice.cached_mb_per_s", cached_mb_per_s(input));
  report.print();
  return 0;
}
