// NVTX's other tool: takes every place, counts the calls, and answers numbers of its own.
#include "tests/loader/ranges/second_tool.h"

#include <atomic>

namespace tessera::test {
namespace {

std::atomic<uint32_t> g_calls[uint32_t(Nvtx::kCount)];
std::atomic<uint64_t> g_answers{1000};

template <Nvtx kFunction, class Signature>
struct Taken;
template <Nvtx kFunction, class Ret, class... Params>
struct Taken<kFunction, Ret(Params...)> {
  static Ret call(Params...) {
    g_calls[uint32_t(kFunction)]++;
    if constexpr (!std::is_void_v<Ret>) return Ret(++g_answers);
  }
};

}  // namespace
}  // namespace tessera::test

extern "C" __attribute__((visibility("default"))) uint32_t second_tool_calls(uint32_t nvtx) {
  return tessera::test::g_calls[nvtx];
}

extern "C" __attribute__((visibility("default"))) int InitializeInjectionNvtx2(
    NvtxGetExportTableFunc_t get_table) {
  using namespace tessera::test;
  const auto* callbacks = static_cast<const NvtxExportTableCallbacks*>(get_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable functions = nullptr;
  unsigned size = 0;
#define TS_ROW(module, name, ret, params)                                        \
  callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_##module, &functions, &size); \
  *functions[NVTX_CBID_##module##_##name] =                                      \
      reinterpret_cast<NvtxFunctionPointer>(&Taken<Nvtx::name, ret params>::call);
  TS_NVTX(TS_ROW)
#undef TS_ROW
  return 1;
}
