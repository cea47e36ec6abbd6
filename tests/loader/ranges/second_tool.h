// Every function of NVTX's modules CORE and CORE2: module, name, what it returns, parameters. Each is called once by
// ranges_test.cc, and counted by second_tool.cc, a tool as a profiler brings one along.
#pragma once

#include <nvtx3/nvToolsExt.h>

#include <cstdint>

// clang-format off
#define TS_NVTX(ROW) \
  ROW(CORE, MarkEx, void, (const nvtxEventAttributes_t*)) \
  ROW(CORE, MarkA, void, (const char*)) \
  ROW(CORE, MarkW, void, (const wchar_t*)) \
  ROW(CORE, RangeStartEx, nvtxRangeId_t, (const nvtxEventAttributes_t*)) \
  ROW(CORE, RangeStartA, nvtxRangeId_t, (const char*)) \
  ROW(CORE, RangeStartW, nvtxRangeId_t, (const wchar_t*)) \
  ROW(CORE, RangeEnd, void, (nvtxRangeId_t)) \
  ROW(CORE, RangePushEx, int, (const nvtxEventAttributes_t*)) \
  ROW(CORE, RangePushA, int, (const char*)) \
  ROW(CORE, RangePushW, int, (const wchar_t*)) \
  ROW(CORE, RangePop, int, ()) \
  ROW(CORE, NameCategoryA, void, (uint32_t, const char*)) \
  ROW(CORE, NameCategoryW, void, (uint32_t, const wchar_t*)) \
  ROW(CORE, NameOsThreadA, void, (uint32_t, const char*)) \
  ROW(CORE, NameOsThreadW, void, (uint32_t, const wchar_t*)) \
  ROW(CORE2, DomainMarkEx, void, (nvtxDomainHandle_t, const nvtxEventAttributes_t*)) \
  ROW(CORE2, DomainRangeStartEx, nvtxRangeId_t, (nvtxDomainHandle_t, const nvtxEventAttributes_t*)) \
  ROW(CORE2, DomainRangeEnd, void, (nvtxDomainHandle_t, nvtxRangeId_t)) \
  ROW(CORE2, DomainRangePushEx, int, (nvtxDomainHandle_t, const nvtxEventAttributes_t*)) \
  ROW(CORE2, DomainRangePop, int, (nvtxDomainHandle_t)) \
  ROW(CORE2, DomainResourceCreate, nvtxResourceHandle_t, (nvtxDomainHandle_t, nvtxResourceAttributes_t*)) \
  ROW(CORE2, DomainResourceDestroy, void, (nvtxResourceHandle_t)) \
  ROW(CORE2, DomainNameCategoryA, void, (nvtxDomainHandle_t, uint32_t, const char*)) \
  ROW(CORE2, DomainNameCategoryW, void, (nvtxDomainHandle_t, uint32_t, const wchar_t*)) \
  ROW(CORE2, DomainRegisterStringA, nvtxStringHandle_t, (nvtxDomainHandle_t, const char*)) \
  ROW(CORE2, DomainRegisterStringW, nvtxStringHandle_t, (nvtxDomainHandle_t, const wchar_t*)) \
  ROW(CORE2, DomainCreateA, nvtxDomainHandle_t, (const char*)) \
  ROW(CORE2, DomainCreateW, nvtxDomainHandle_t, (const wchar_t*)) \
  ROW(CORE2, DomainDestroy, void, (nvtxDomainHandle_t))
// clang-format on

namespace tessera::test {

enum class Nvtx : uint32_t {
#define TS_ROW(module, name, ret, params) name,
  TS_NVTX(TS_ROW)
#undef TS_ROW
      kCount
};

}  // namespace tessera::test

extern "C" uint32_t second_tool_calls(uint32_t nvtx);  // of that function
