// The generated table against the toolkit's headers, and against itself.
#include "driver_api/real_table.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <set>
#include <string>

// Every row, declared once more: where the toolkit's headers declare it, too, this compiles only if they say the same.
#define TS_CU(symbol, base, since, stream, ret, params, args) extern "C" ret symbol params;
#include "driver_api/entries.def"

namespace tessera::driver_api {
namespace {

bool ends_with(const std::string& s, const char* tail) {
  return s.size() > std::strlen(tail) &&
         s.compare(s.size() - std::strlen(tail), std::string::npos, tail) == 0;
}

TEST(Table, HasEveryExportAndTheGraphicsNames) {
  EXPECT_EQ(kEntryCount, 732);
  for (const char* name : {"cuInit", "cuLaunchKernel", "cuLaunchKernel_ptsz", "cuMemAlloc", "cuMemAlloc_v2",
                           "cuMemcpyHtoD_v2_ptds", "cuGetProcAddress", "cuGetProcAddress_v2", "cuGLInit",
                           "cuEGLStreamProducerPresentFrame", "cuVDPAUCtxCreate_v2", "cuProfilerStart"}) {
    const Entry e = find_entry(name);
    ASSERT_NE(e, Entry::kCount) << name;
    EXPECT_STREQ(info(e).symbol, name);
  }
  EXPECT_EQ(find_entry("cuNoSuchFunction"), Entry::kCount);
  EXPECT_EQ(find_entry(""), Entry::kCount);
  EXPECT_EQ(find_entry("zzz"), Entry::kCount);
  EXPECT_TRUE(known_base("cuMemcpyHtoD"));
  EXPECT_FALSE(known_base("cuMemcpyHtoD_v2"));
}

// The functions of driver_api/undeclared.txt that we export, too. cuGetProcAddress never finds them.
const std::set<std::string> kUndeclared = {"cuEGLApiInit",   "cuMemGetAttribute",  "cuMemGetAttribute_v2",
                                           "cudbgApiAttach", "cudbgApiDetach",     "cudbgApiInit",
                                           "cudbgGetAPI",    "cudbgGetAPIVersion", "cudbgMain"};

TEST(Table, HasWhatDriversExportAndNoHeaderDeclares) {
  for (const std::string& name : kUndeclared) {
    ASSERT_NE(find_entry(name.c_str()), Entry::kCount) << name;
    EXPECT_EQ(info(find_entry(name.c_str())).since, 0) << name;
  }
  // A debugger takes the first library that has these names, so they stay the driver's alone.
  for (const char* name : {"cudbgReportDriverApiError", "cudbgReportDriverInternalError", "cudbgIpcFlag"})
    EXPECT_EQ(find_entry(name), Entry::kCount) << name;
}

TEST(Table, EveryRowHasAVersionAndEveryAbiItsOwn) {
  std::map<std::pair<std::string, bool>, std::set<int>> versions;
  for (const EntryInfo& row : kEntryInfo) {
    if (kUndeclared.contains(row.symbol)) continue;
    EXPECT_GE(row.since, 2000) << row.symbol;
    EXPECT_LE(row.since, 13050) << row.symbol;
    EXPECT_TRUE(std::string(row.symbol).starts_with(row.base)) << row.symbol;
    const bool per_thread = ends_with(row.symbol, "_ptds") || ends_with(row.symbol, "_ptsz");
    EXPECT_TRUE(versions[(std::pair{std::string(row.base), per_thread})].insert(row.since).second)
        << row.symbol << ": two ABIs of one name for one version";
  }
  EXPECT_EQ(info(Entry::cuCtxCreate).since, 2000);
  EXPECT_EQ(info(Entry::cuCtxCreate_v4).since, 12050);
  EXPECT_EQ(info(Entry::cuGetProcAddress).since, 11030);
  EXPECT_EQ(info(Entry::cuGetProcAddress_v2).since, 12000);
  EXPECT_EQ(info(Entry::cuLaunchKernel).since, 4000);
  EXPECT_EQ(info(Entry::cuLaunchKernel_ptsz).since, 7000);
}

TEST(Table, StreamFlavourFollowsTheSuffix) {
  for (const EntryInfo& row : kEntryInfo) {
    const bool per_thread = ends_with(row.symbol, "_ptds") || ends_with(row.symbol, "_ptsz");
    EXPECT_EQ(row.flavour == Flavour::kPerThread, per_thread) << row.symbol;
    if (!per_thread) continue;
    const std::string twin(row.symbol, std::strlen(row.symbol) - 5);
    ASSERT_NE(find_entry(twin.c_str()), Entry::kCount) << row.symbol << " has no twin";
    EXPECT_EQ(info(find_entry(twin.c_str())).flavour, Flavour::kLegacy) << twin;
    EXPECT_EQ(info(find_entry(twin.c_str())).klass, row.klass) << twin;
  }
  EXPECT_EQ(info(Entry::cuCtxSynchronize).flavour, Flavour::kNone);
  EXPECT_EQ(info(Entry::cuMemcpyHtoD).flavour, Flavour::kLegacy);
  EXPECT_EQ(info(Entry::cuLaunchKernelEx).flavour, Flavour::kLegacy);
}

// The stream column of every hooked row compiles where the row's parameters are in scope, and yields the
// argument.
#define TS_HOOK(klass, symbol, base, since, stream, ret, params, args) \
  [[maybe_unused]] StreamArg stream_of_##symbol params {               \
    return TS_STREAM_ARG(stream);                                      \
  }
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include "driver_api/hooks.def"
#pragma GCC diagnostic pop

TEST(Table, StreamColumnYieldsTheArgument) {
  CUlaunchConfig config = {};
  config.hStream = reinterpret_cast<CUstream>(0x40);
  EXPECT_EQ(stream_of_cuLaunchKernelEx(&config, nullptr, nullptr, nullptr).stream, config.hStream);
  EXPECT_EQ(stream_of_cuLaunchKernelEx(nullptr, nullptr, nullptr, nullptr).stream, nullptr);
  EXPECT_EQ(stream_of_cuLaunchKernelEx_ptsz(&config, nullptr, nullptr, nullptr).flavour, Flavour::kPerThread);
  EXPECT_EQ(stream_of_cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, config.hStream, nullptr, nullptr).stream,
            config.hStream);
  EXPECT_EQ(stream_of_cuMemcpyHtoD_v2_ptds(0, nullptr, 0).flavour, Flavour::kPerThread);
  EXPECT_EQ(stream_of_cuCtxSynchronize().flavour, Flavour::kNone);
}

TEST(Actions, LaunchesAreHookedAndQueriesAreNot) {
  const std::map<Entry, Class> expected = {
      {Entry::cuLaunchKernel, Class::k_launch},
      {Entry::cuLaunchKernelEx_ptsz, Class::k_launch},
      {Entry::cuLaunchCooperativeKernel, Class::k_launch_whole},
      {Entry::cuGraphLaunch_ptsz, Class::k_launch_graph},
      {Entry::cuLaunchGridAsync, Class::k_launch_whole},
      {Entry::cuMemcpy, Class::k_copy},
      {Entry::cuMemcpy3DBatchAsync_v2_ptsz, Class::k_copy},
      {Entry::cuMemsetD2D32_v2_ptds, Class::k_memset},
      {Entry::cuCtxSynchronize_v2, Class::k_sync},
      {Entry::cuStreamBeginCaptureToGraph_ptsz, Class::k_capture},
      {Entry::cuStreamBeginRecaptureToGraph_ptsz, Class::k_capture},
      {Entry::cuStreamEndCaptureToCig, Class::k_capture},
      {Entry::cuFabricCpyBatchAsync_ptsz, Class::k_copy},
      {Entry::cuLaunchHostFunc_v2_ptsz, Class::k_callback},
      {Entry::cuGraphNodeSetParams_v2, Class::k_graph_edit},
      {Entry::cuGraphAddNode_v3, Class::k_graph},
      {Entry::cuGraphNodeGetParams, Class::k_graph},
      {Entry::cuGetProcAddress_v2, Class::k_resolve},
      {Entry::cuInit, Class::k_init},
      {Entry::cuGetExportTable, Class::kPass},
      {Entry::cuDeviceGetAttribute, Class::kPass},
      {Entry::cuMemGetInfo_v2, Class::k_memory_size},
      {Entry::cuMemGetAddressRange_v2, Class::kPass},
      {Entry::cuMemCreate, Class::k_allocate},
      {Entry::cuMemAllocHost_v2, Class::k_refer},
      {Entry::cuMemFree_v2, Class::k_release},
      {Entry::cuLaunchHostFunc, Class::k_callback},
  };
  for (const auto& [entry, klass] : expected) EXPECT_EQ(info(entry).klass, klass) << info(entry).symbol;
}

// Whatever the header calls a launch or a copy must be hooked, also if a later toolkit adds one.
TEST(Actions, NoLaunchOrCopyIsForgotten) {
  for (const EntryInfo& row : kEntryInfo) {
    const std::string s = row.symbol;
    const bool does_work =
        s.starts_with("cuMemcpy") || s.starts_with("cuMemset") || s.starts_with("cuFabricCpy") ||
        (s.starts_with("cuLaunch") && !s.starts_with("cuLaunchHostFunc")) || s.starts_with("cuGraphLaunch");
    const bool hooked = row.klass == Class::k_launch || row.klass == Class::k_launch_whole ||
                        row.klass == Class::k_launch_graph || row.klass == Class::k_copy ||
                        row.klass == Class::k_memset;
    EXPECT_EQ(does_work, hooked) << s;
  }
}

// The name of an entry point tells that it can refuse a program memory of the device.
TEST(Actions, NoAllocationIsForgotten) {
  for (const EntryInfo& row : kEntryInfo) {
    const std::string s = row.symbol;
    const bool of_host = s.find("Host") != std::string::npos;
    const bool makes = s.starts_with("cuMemCreate") || s.starts_with("cuMulticastCreate") ||
                       (s.find("ArrayCreate") != std::string::npos) || s.starts_with("cuArray3DCreate");
    const bool allocates = (s.starts_with("cuMemAlloc") && !of_host) || makes;
    EXPECT_TRUE(!allocates || row.klass == Class::k_allocate) << s;
  }
}

// A call on a graph, or on a node, must not meet a reading of that graph (interpose/track/graph_sources.h).
TEST(Actions, NoCallOnAGraphIsForgotten) {
  for (const EntryInfo& row : kEntryInfo) {
    const std::string s = row.symbol;
    if (!s.starts_with("cuGraph") || s.starts_with("cuGraphics")) continue;
    const bool other = s.starts_with("cuGraphLaunch") || s.starts_with("cuGraphUpload") ||
                       s == "cuGraphCreate" || s == "cuGraphExecGetFlags" || s == "cuGraphExecGetId";
    const bool hooked =
        row.klass == Class::k_graph || row.klass == Class::k_graph_edit || row.klass == Class::k_graph_query;
    EXPECT_NE(other, hooked) << s;
    const bool edits = s.starts_with("cuGraphAdd") || s.starts_with("cuGraphRemove") ||
                       (s.find("Set") != std::string::npos && !s.starts_with("cuGraphExec"));
    EXPECT_FALSE(edits && row.klass == Class::k_graph_query) << s;
  }
}

}  // namespace
}  // namespace tessera::driver_api
