// A libcuda.so.1 in front of the software GPU's that cuts every launch it may at random: the slices of a
// random plan, ascending, one after the other in the launch's stream. The CUDA runtime, which asks for its
// driver by cuGetProcAddress alone, takes it for the driver; what comes out must be what the program wants.
// Order dependence is allowed, so that look-backs are cut, in grids of one row. At the program's end it
// prints how many launches were cut, and ends it with status 3 if no look-back kernel was cut whose name
// holds a word of TESSERA_RANDOM_CUT_EXPECT. TESSERA_RANDOM_CUT_SEED: the plans. One thread.
#include <cuda.h>
#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <list>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "admission/slices.h"
#include "kernels/image/image.h"
#include "kernels/ptx/parser.h"
#include "kernels/ptx/printer.h"
#include "kernels/slice/slice.h"

namespace {

using namespace tessera;
using Reports = std::map<std::string, slice::KernelReport>;

struct Kernel {
  const slice::KernelReport* report;
  CUkernel variant;
};

struct State {
  std::map<CUlibrary, Reports> libraries;
  std::map<const void*, Kernel> kernels;  // by CUkernel, and by its CUfunction
  std::list<std::string> texts;           // the driver may keep a pointer
  std::map<std::string, unsigned> look_backs;
  unsigned launches = 0, cut = 0, slices = 0;
  std::mt19937_64 random;

  State() {
    const char* seed = std::getenv("TESSERA_RANDOM_CUT_SEED");
    random.seed(seed ? std::strtoull(seed, nullptr, 10) : 1);
  }
  ~State() {
    std::printf("%u of %u launches cut, into %u slices; %zu look-back kernels\n", cut, launches, slices,
                look_backs.size());
    const char* expected = std::getenv("TESSERA_RANDOM_CUT_EXPECT");
    std::istringstream words(expected ? expected : "");
    for (std::string word; words >> word;) {
      bool found = false;
      for (const auto& [name, n] : look_backs) found = found || name.find(word) != std::string::npos;
      if (found) continue;
      std::printf("no look-back kernel was cut that is named %s\n", word.c_str());
      std::fflush(stdout);
      _exit(3);
    }
  }
};
State& state() {
  static State s;
  return s;
}

struct {
  decltype(&cuGetProcAddress) get_proc;
  decltype(&cuLibraryLoadData) load;
  decltype(&cuLibraryGetKernel) get_kernel;
  decltype(&cuKernelGetFunction) get_function;
  decltype(&cuLaunchKernel) launch;
  decltype(&cuLaunchKernelEx) launch_ex;
} g_real;

// The image's PTX with variants; "" if it has none or none may be cut.
std::string with_variants(const void* image, Reports* reports) {
  auto entries = image::list_unsized(image, size_t(64) << 20);
  if (!entries.ok()) return "";
  for (const image::Entry& entry : *entries) {
    if (entry.kind != image::EntryKind::kPtx) continue;
    auto payload = image::load(entry);
    if (!payload.ok()) return "";
    auto module = ptx::parse({reinterpret_cast<const char*>(payload->data()), payload->size()});
    if (!module.ok()) return "";
    for (slice::KernelReport& r : slice::add_variants(*module, {.allow_order_dependent = true}))
      if (r.verdict.may_cut()) reports->emplace(r.kernel, std::move(r));
    return reports->empty() ? "" : ptx::print(*module);
  }
  return "";
}

CUresult load(CUlibrary* library, const void* code, CUjit_option* jit, void** jit_values, unsigned n_jit,
              CUlibraryOption* options, void** values, unsigned n) {
  Reports reports;
  std::string text = with_variants(code, &reports);
  if (!text.empty()) code = state().texts.emplace_back(std::move(text)).c_str();
  const CUresult result = g_real.load(library, code, jit, jit_values, n_jit, options, values, n);
  if (result == CUDA_SUCCESS) state().libraries[*library] = std::move(reports);
  return result;
}

CUresult get_kernel(CUkernel* kernel, CUlibrary library, const char* name) {
  const CUresult result = g_real.get_kernel(kernel, library, name);
  const Reports& reports = state().libraries[library];
  const auto report = reports.find(name);
  CUkernel variant = nullptr;
  if (result == CUDA_SUCCESS && report != reports.end() &&
      g_real.get_kernel(&variant, library, (report->first + slice::kVariantSuffix).c_str()) == CUDA_SUCCESS)
    state().kernels[*kernel] = {&report->second, variant};
  return result;
}

CUresult get_function(CUfunction* function, CUkernel kernel) {
  const CUresult result = g_real.get_function(function, kernel);
  const auto known = state().kernels.find(kernel);
  if (result == CUDA_SUCCESS && known != state().kernels.end()) state().kernels[*function] = known->second;
  return result;
}

// True: launched as slices, *result is the driver's word.
bool cut(CUfunction f, const unsigned* grid, const unsigned* block, unsigned shared, CUstream stream,
         void** params, CUresult* result) {
  State& s = state();
  ++s.launches;
  const auto known = s.kernels.find(f);
  const uint64_t total = uint64_t{grid[0]} * grid[1] * grid[2];
  if (known == s.kernels.end() || total < 2 || !params) return false;
  const slice::KernelReport& report = *known->second.report;
  const bool look_back = !report.look_back.empty();
  if (report.clusters || (look_back && (grid[1] != 1 || grid[2] != 1))) return false;
  slice::SliceOrigin origin;
  const uint32_t whole[3] = {grid[0], grid[1], grid[2]};
  std::memcpy(origin.grid, whole, sizeof whole);
  std::vector<void*> with(params, params + report.n_params);
  with.push_back(&origin);
  ++s.cut;
  if (look_back) ++s.look_backs[report.kernel];
  for (uint64_t at = 0; at < total;) {
    const uint64_t n = 1 + s.random() % (s.random() % 2 ? 5 : total);
    const admission::Box box = admission::next_box(whole, at, {n});
    at += box.blocks();
    std::memcpy(origin.origin, box.origin, sizeof origin.origin);
    ++s.slices;
    *result =
        g_real.launch(reinterpret_cast<CUfunction>(known->second.variant), box.extent[0], box.extent[1],
                      box.extent[2], block[0], block[1], block[2], shared, stream, with.data(), nullptr);
    if (*result != CUDA_SUCCESS) return true;
  }
  return true;
}

CUresult launch(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                unsigned shared, CUstream stream, void** params, void** extra) {
  const unsigned grid[] = {gx, gy, gz}, block[] = {bx, by, bz};
  CUresult result;
  return !extra && cut(f, grid, block, shared, stream, params, &result)
             ? result
             : g_real.launch(f, gx, gy, gz, bx, by, bz, shared, stream, params, extra);
}

CUresult launch_ex(const CUlaunchConfig* c, CUfunction f, void** params, void** extra) {
  const unsigned grid[] = {c->gridDimX, c->gridDimY, c->gridDimZ},
                 block[] = {c->blockDimX, c->blockDimY, c->blockDimZ};
  CUresult result;
  return !extra && c->numAttrs == 0 && cut(f, grid, block, c->sharedMemBytes, c->hStream, params, &result)
             ? result
             : g_real.launch_ex(c, f, params, extra);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) CUresult cuGetProcAddress_v2(
    const char* symbol, void** function, int version, cuuint64_t flags,
    CUdriverProcAddressQueryResult* status) {
  if (!g_real.get_proc) {
    void* driver = dlopen(TS_SOFT_DRIVER, RTLD_NOW | RTLD_LOCAL);
    g_real.get_proc =
        driver ? reinterpret_cast<decltype(g_real.get_proc)>(dlsym(driver, "cuGetProcAddress_v2")) : nullptr;
    if (!g_real.get_proc) {
      std::fprintf(stderr, "software GPU: %s\n", dlerror());
      std::abort();
    }
    state();
  }
  const struct {
    const char* symbol;
    void** real;
    void* ours;
  } kOurs[] = {
      {"cuGetProcAddress", nullptr, reinterpret_cast<void*>(cuGetProcAddress_v2)},
      {"cuLibraryLoadData", reinterpret_cast<void**>(&g_real.load), reinterpret_cast<void*>(load)},
      {"cuLibraryGetKernel", reinterpret_cast<void**>(&g_real.get_kernel),
       reinterpret_cast<void*>(get_kernel)},
      {"cuKernelGetFunction", reinterpret_cast<void**>(&g_real.get_function),
       reinterpret_cast<void*>(get_function)},
      {"cuLaunchKernel", reinterpret_cast<void**>(&g_real.launch), reinterpret_cast<void*>(launch)},
      {"cuLaunchKernelEx", reinterpret_cast<void**>(&g_real.launch_ex), reinterpret_cast<void*>(launch_ex)},
  };
  const CUresult result = g_real.get_proc(symbol, function, version, flags, status);
  for (const auto& ours : kOurs) {
    if (result != CUDA_SUCCESS || !*function || std::strcmp(symbol, ours.symbol) != 0) continue;
    if (ours.real) *ours.real = *function;
    *function = ours.ours;
  }
  return result;
}
