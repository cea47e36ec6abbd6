#include "cli/look/inspect.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "kernels/image/write.h"
#include "tests/support/shell.h"

namespace tessera::cli {
namespace {

std::string fixture(const std::string& name) {
  std::ifstream in(std::string(FIXTURES) + "/" + name, std::ios::binary);
  EXPECT_TRUE(in) << name;
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

std::vector<InspectedEntry> entries(const std::string& bytes, const InspectOptions& options = {}) {
  std::vector<InspectedEntry> out;
  const base::Status done = inspect_bytes({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()},
                                          options, [&](const InspectedEntry& e) { out.push_back(e); });
  EXPECT_TRUE(done.ok()) << (done.ok() ? "" : done.error().text);
  return out;
}

TEST(Inspect, FatBinaryHasBothFormsOfEachKernel) {
  const auto all = entries(fixture("size.fatbin"));
  ASSERT_EQ(all.size(), 2u);
  const InspectedEntry &cubin = all[0], &ptx = all[1];
  EXPECT_EQ(cubin.entry.kind, image::EntryKind::kCubin);
  EXPECT_STREQ(ptx.entry.compression, "zstd");
  EXPECT_GT(ptx.bytes, ptx.entry.stored_bytes);
  EXPECT_EQ(cubin.cubin_kernels.size(), ptx.kernels.size());
  for (const InspectedKernel& k : ptx.kernels) {
    EXPECT_EQ(k.report.kernel.starts_with("accepted_"),
              k.report.verdict.may_cut() || k.report.kernel == "accepted_count")
        << k.report.kernel;
    // It reads __constant__ coefficients.
    if (k.report.kernel == "accepted_add") {
      EXPECT_EQ(k.globals.obstacle, slice::GlobalsObstacle::kConstant);
    }
  }
}

TEST(Inspect, TileIrIsNamedAndNotLookedInto) {
  const auto all = entries(std::string("\x7fTileIR\0\x0d\x01\0\0\x02", 13));
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].entry.kind, image::EntryKind::kOther);
  EXPECT_EQ(all[0].entry.version_major, 13u);
  EXPECT_EQ(all[0].entry.version_minor, 1u);
  EXPECT_NE(all[0].problem.find("CUDA Tile IR"), std::string::npos) << all[0].problem;
}

TEST(Inspect, RefusalsNameTheLineOfTheSource) {
  std::map<std::string, std::string> source;
  const auto all = entries(fixture("kernels_debug.ptx"));
  for (const InspectedKernel& k : all[0].kernels) source[k.report.kernel] = k.source;
  EXPECT_NE(source["refused_spin"].find("kernels.cu:"), std::string::npos) << source["refused_spin"];
}

// Cut only where the user allows it; the wait is named either way.
TEST(Inspect, LookBacksAreCutOnRequestOnly) {
  constexpr char kText[] = R"(
.version 7.0
.target sm_70
.address_size 64
.visible .entry chain(.param .u64 p)
{
  .reg .b32 %r<4>;
  .reg .b64 %rd<4>;
  .reg .pred %p<2>;
  ld.param.u64 %rd1, [p];
  mov.u32 %r1, %ctaid.x;
  mul.wide.u32 %rd2, %r1, 4;
  add.s64 %rd3, %rd1, %rd2;
AGAIN:
  ld.acquire.gpu.global.u32 %r2, [%rd3+-4];
  setp.eq.s32 %p1, %r2, 0;
  @%p1 bra AGAIN;
  st.release.gpu.global.u32 [%rd3], %r2;
  ret;
}
)";
  for (const bool allow : {false, true}) {
    const slice::KernelReport report = entries(kText, {.allow_order_dependent = allow})[0].kernels[0].report;
    EXPECT_EQ(report.verdict.may_cut(), allow) << report.verdict.detail;
    EXPECT_TRUE(report.look_back.starts_with("line 15: ld.acquire")) << report.look_back;
    EXPECT_TRUE(report.order_dependent);
  }
}

TEST(Inspect, OnlyTheKernelThatWasNamed) {
  const auto all = entries(fixture("size.fatbin"), {.kernel = "accepted_half"});
  ASSERT_EQ(all[0].cubin_kernels.size(), 1u);
  ASSERT_EQ(all[1].kernels.size(), 1u);
  EXPECT_EQ(all[1].kernels[0].report.kernel, "accepted_half");
}

std::string output(const std::string& arguments, int* status) {
  const test::Ended ended = test::shell(std::string(TESSERA_BIN) + " inspect " + arguments);
  *status = ended.status;
  return ended.text;
}

TEST(Inspect, WhatCannotBeReadIsSaid) {
  int status = 0;
  EXPECT_NE(output("/bin/sh", &status).find("holds no GPU code"), std::string::npos);
  EXPECT_NE(status, 0);
  EXPECT_NE(output("/no/such/file", &status).find("No such file"), std::string::npos);
  EXPECT_NE(output(FIXTURES "/size.fatbin --kernel nobody", &status).find("no kernel 'nobody'"),
            std::string::npos);
  EXPECT_NE(status, 0);
  ASSERT_EQ(std::system("head -c 20000 " TESSERA_TRAINER " > inspect_truncated"), 0);
  EXPECT_NE(output("inspect_truncated", &status).find("outside the image"), std::string::npos);
  remove("inspect_truncated");
  std::string cut = fixture("size.fatbin");
  cut.resize(cut.size() / 2);
  EXPECT_FALSE(inspect_bytes({reinterpret_cast<const uint8_t*>(cut.data()), cut.size()}, {},
                             [](const InspectedEntry&) {})
                   .ok());
}

TEST(Inspect, KernelsOfClustersAreSaid) {
  int status = 0;
  const std::string said = output(GOLDEN "/s8_cluster.ptx", &status);
  EXPECT_NE(said.find("accepted_rank: can be cut in whole clusters\n"), std::string::npos) << said;
  EXPECT_NE(said.find("accepted_bulk_copy: can be cut\n"), std::string::npos) << said;
  const auto json =
      nlohmann::json::parse(output(GOLDEN "/s8_cluster_launch.ptx --json", &status), nullptr, false);
  ASSERT_FALSE(json.is_discarded());
  for (const auto& kernel : json["entries"][0]["kernels"]) EXPECT_EQ(kernel["clusters"], true) << kernel;
  EXPECT_EQ(json["entries"][0]["kernels"][0]["refusal"], "cluster");
}

// Entries of one container are looked at one by one: progress at each, and a damaged one hides no other.
TEST(Inspect, OneContainerEntryByEntry) {
  std::vector<image::LoadedEntry> made(4);
  for (image::LoadedEntry& e : made) {
    const std::string ptx = fixture("kernels.ptx");
    e.kind = image::EntryKind::kPtx;
    e.sm = 75;
    e.compression = "zstd";
    e.payload.assign(ptx.begin(), ptx.end());
  }
  auto bytes = image::write_container(made);
  ASSERT_TRUE(bytes.ok());
  const size_t entry_bytes = (bytes->size() - 16) / made.size();
  constexpr size_t kHeader = 80;                                              // of PTX
  std::fill_n(bytes->data() + 16 + entry_bytes + kHeader, 8, uint8_t{0xff});  // payload of the second
  std::vector<double> shares;
  std::vector<InspectedEntry> all;
  const base::Status done = inspect_bytes(
      *bytes, {}, [&](const InspectedEntry& e) { all.push_back(e); },
      [&](double share) { shares.push_back(share); });
  ASSERT_TRUE(done.ok()) << done.error().text;
  ASSERT_EQ(all.size(), made.size());
  for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i].problem.empty(), i != 1) << all[i].problem;
  EXPECT_EQ(all[3].kernels.size(), all[0].kernels.size());
  ASSERT_EQ(shares.size(), made.size() + 1);
  for (size_t i = 0; i < shares.size(); ++i) EXPECT_NEAR(shares[i], double(i) / double(made.size()), 0.01);

  auto broken = image::write_container(std::vector{made[0]});
  std::fill_n(broken->data() + 16 + kHeader, 8, uint8_t{0xff});
  EXPECT_FALSE(inspect_bytes(*broken, {}, [](const InspectedEntry&) {}).ok()) << "nothing in it can be read";
}

TEST(Inspect, JsonOfSeveralEntries) {
  int status = 0;
  const auto whole = nlohmann::json::parse(output(FIXTURES "/size.fatbin --json", &status), nullptr, false);
  ASSERT_FALSE(whole.is_discarded());
  EXPECT_EQ(whole["file"], FIXTURES "/size.fatbin");
  ASSERT_EQ(whole["entries"].size(), 2u);
  EXPECT_EQ(whole["entries"][1]["kind"], "ptx");
}

// Names of files are bytes.
TEST(Inspect, JsonOfAFileWhoseNameIsNoUtf8) {
  std::filesystem::copy_file(FIXTURES "/size.fatbin", "inspect_\xff",
                             std::filesystem::copy_options::overwrite_existing);
  int status = 1;
  const auto whole = nlohmann::json::parse(output("'inspect_\xff' --json", &status), nullptr, false);
  std::filesystem::remove("inspect_\xff");
  EXPECT_EQ(status, 0);
  ASSERT_FALSE(whole.is_discarded());
  EXPECT_EQ(whole["file"], "inspect_\uFFFD");
}

// ptxas's facts about a kernel with clusters and barriers, and about an object that is not linked.
TEST(Inspect, MachineCodeWithClustersAndObjects) {
  int status = 0;
  const std::string cluster = output(CORPUS "/cluster.cubin", &status);
  EXPECT_NE(cluster.find("cubin sm_90a"), std::string::npos) << cluster;
  EXPECT_NE(cluster.find("2 barriers, clusters of 2 x 1 x 1"), std::string::npos) << cluster;
  EXPECT_EQ(cluster.find("unknown"), std::string::npos) << cluster;
  const std::string object = output(CORPUS "/object.cubin", &status);
  EXPECT_NE(object.find("relocatable"), std::string::npos) << object;
  EXPECT_EQ(cluster.find("relocatable"), std::string::npos);
  const std::string json = output(CORPUS "/cluster.cubin --json", &status);
  EXPECT_NE(json.find("\"cluster_shape\""), std::string::npos) << json;
  const std::string ptx = output(FIXTURES "/kernels.ptx", &status);
  EXPECT_NE(ptx.find("known after compilation"), std::string::npos) << ptx;
}

TEST(Inspect, EmitsTheVariantAndReadsPrograms) {
  int status = 0;
  const std::string ptx = output(FIXTURES "/kernels.ptx --emit-slice", &status);
  EXPECT_EQ(status, 0);
  EXPECT_NE(ptx.find("accepted_half__tessera_slice("), std::string::npos);
  EXPECT_EQ(ptx.find("refused_spin__tessera_slice("), std::string::npos);
  const std::string program = output(TESSERA_TRAINER, &status);
  EXPECT_NE(program.find("gemm"), std::string::npos) << program;
  EXPECT_NE(program.find("can be cut"), std::string::npos);
}

}  // namespace
}  // namespace tessera::cli
