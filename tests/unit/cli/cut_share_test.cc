#include "cli/look/cut_share.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/measure/gpus.h"
#include "tests/support/shell.h"

namespace tessera::cli {
namespace {

// Outcomes by kernel of gencode.cu, compiled for one set of -gencode, on a GPU.
std::map<std::string, CutOutcome> outcomes(const std::string& set, const CutShareOptions& options) {
  std::ifstream in(FIXTURES "/" + set + ".fatbin", std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  const std::string bytes = text.str();
  const auto share = cut_share({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}, options);
  EXPECT_TRUE(share.ok()) << set;
  std::map<std::string, CutOutcome> out;
  if (!share) return out;
  EXPECT_TRUE(share->unread.empty());
  for (const CutShare::Kernel& k : share->kernels) out[k.name] = k.outcome;
  EXPECT_EQ(out.size(), share->kernels.size()) << "a kernel was counted twice";
  return out;
}

void expect_all(const std::map<std::string, CutOutcome>& kernels, CutOutcome outcome) {
  EXPECT_EQ(kernels.size(), 5u);
  for (const auto& [name, is] : kernels) EXPECT_EQ(outcome_name(is), outcome_name(outcome)) << name;
}

TEST(CutShare, MachineCodeAloneIsNotCut) {
  expect_all(outcomes("gencode_code", {.sm = 90}), CutOutcome::kMachineCode);
  // PTX that is newer than the GPU cannot be compiled for it.
  expect_all(outcomes("gencode_newer", {.sm = 90}), CutOutcome::kNewerPtx);
  // PTX of another virtual architecture may be another source.
  expect_all(outcomes("gencode_other", {.sm = 90}), CutOutcome::kNoSource);
}

TEST(CutShare, BesideMachineCodeByStateAndBits) {
  auto kernels = outcomes("gencode_both", {.sm = 90});
  EXPECT_EQ(kernels["copies"], CutOutcome::kCut);
  EXPECT_EQ(kernels["waits"], CutOutcome::kRule);
  EXPECT_EQ(kernels["sums"], CutOutcome::kOrder);
  EXPECT_EQ(kernels["exponents"], CutOutcome::kBits);
  EXPECT_EQ(kernels["looks_up"], CutOutcome::kState);
  kernels = outcomes("gencode_both", {.sm = 90, .relaxed = true, .allow_order_dependent = true});
  EXPECT_EQ(kernels["sums"], CutOutcome::kCut);
  EXPECT_EQ(kernels["exponents"], CutOutcome::kCut);
  EXPECT_EQ(kernels["looks_up"], CutOutcome::kState);
  EXPECT_EQ(kernels["waits"], CutOutcome::kRule);
}

// A kernel that `tessera prepare` proved may be cut under strict bit stability, if the cache has it.
TEST(CutShare, PreparedKernels) {
  char folder[] = "/tmp/tessera-prepare-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const std::string command = std::string("TESSERA_CACHE_MAX_MB=16 TESSERA_CACHE_DIR=") + folder +
                              " TESSERA_PTXAS=" + PTXAS + " " + TESSERA_BIN;
  const auto outcome = [&] {
    return test::shell(command + " inspect --gpu sm_90 --kernel exponents " FIXTURES "/gencode_both.fatbin")
        .text;
  };
  const std::string before = outcome();
  EXPECT_NE(before.find("machine code"), std::string::npos) << before;
  const auto prepared = test::shell(command + " prepare --json " FIXTURES "/gencode_both.fatbin");
  ASSERT_EQ(prepared.status, 0) << prepared.text;
  std::map<std::string, std::string> why;
  const auto report = nlohmann::json::parse(prepared.text);
  for (const auto& k : report["kernels"]) why[k["name"]] = k["why_not"];
  EXPECT_EQ(why.size(), 5u);
  EXPECT_EQ(why["copies"], "");
  EXPECT_EQ(why["exponents"], "");
  EXPECT_EQ(why["waits"].find("inter_block_wait: "), 0u) << why["waits"];
  EXPECT_EQ(why["looks_up"].find("const_variable: "), 0u) << why["looks_up"];
  EXPECT_EQ(outcome(), "exponents: can be cut\n");
  EXPECT_EQ(test::shell(command + " prepare " FIXTURES "/gencode_code.fatbin").text,
            "sm_90: no PTX that it was made from\n0 of 0 kernels have a proved variant.\n");
  EXPECT_NE(test::shell(std::string("TESSERA_CACHE_MAX_MB=0 TESSERA_PTXAS=") + PTXAS + " " + TESSERA_BIN +
                        " prepare " FIXTURES "/gencode_both.fatbin")
                .status,
            0);
  EXPECT_NE(test::shell(command + " prepare /no/such/libcublas.so.13").status, 0);
  EXPECT_NE(test::shell(command + " prepare " GPUS "/h200.toml").status, 0);
  std::filesystem::remove_all(folder);
}

// The driver compiles older PTX for a newer GPU: one compilation, so bits do not matter.
TEST(CutShare, OlderPtxIsCompiledAnyway) {
  auto kernels = outcomes("gencode_older", {.sm = 90});
  EXPECT_EQ(kernels["copies"], CutOutcome::kCut);
  EXPECT_EQ(kernels["exponents"], CutOutcome::kCut);
  EXPECT_EQ(kernels["looks_up"], CutOutcome::kCut);
  EXPECT_EQ(kernels["waits"], CutOutcome::kRule);
  EXPECT_TRUE(outcomes("gencode_both", {.sm = 80}).empty()) << "nothing of it runs there";
}

TEST(CutShare, LibrariesOfNvidiaAreNeverCut) {
  expect_all(outcomes("gencode_both", {.sm = 90, .file_name = "libcublas.so.13"}), CutOutcome::kVendor);
}

TEST(CutShare, GpusByNameAndByNumber) {
  const std::vector<std::string> folders = {"/no/such/folder", GPUS};
  ASSERT_TRUE(find_gpu("H200", folders).ok());
  EXPECT_EQ(find_gpu("H200", folders)->sm, 90u);
  EXPECT_EQ(find_gpu("h200", folders)->name, "NVIDIA H200");
  EXPECT_EQ(find_gpu("sm_120", folders)->sm, 120u);
  for (const char* wrong : {"", "sm_", "sm_90a", "sm_5", "../gpus/h200", "h9000"}) {
    const auto gpu = find_gpu(wrong, folders);
    ASSERT_FALSE(gpu.ok()) << wrong;
    EXPECT_NE(gpu.error().text.find("h200"), std::string::npos) << gpu.error().text;
  }
}

TEST(CutShare, OneSentenceAndJson) {
  const auto run = [](const std::string& arguments) {
    return test::shell(std::string(TESSERA_BIN) + " inspect " + arguments);
  };
  const auto code = run("--gpu h200 " FIXTURES "/gencode_code.fatbin");
  EXPECT_EQ(code.status, 0);
  EXPECT_TRUE(code.text.starts_with(
      "On NVIDIA H200 (sm_90) 0 of 5 kernels can be cut (0 %): 5 machine code without PTX.\n"))
      << code.text;
  EXPECT_NE(code.text.find("TORCH_CUDA_ARCH_LIST=\"9.0+PTX\""), std::string::npos) << code.text;
  EXPECT_NE(code.text.find("tessera run --keep-ptx"), std::string::npos) << code.text;
  EXPECT_NE(code.text.find("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"), std::string::npos);
  EXPECT_EQ(run("--gpu sm_80 " FIXTURES "/gencode_code.fatbin").text,
            "On sm_80 nothing of this file runs: it holds machine code for sm_90.\n");
  EXPECT_EQ(run("--gpu sm_90 --kernel sums " FIXTURES "/gencode_both.fatbin").text,
            "sums: whose results may depend on the order of blocks\n");
  EXPECT_NE(run("--gpu sm_90 --kernel nobody " FIXTURES "/gencode_both.fatbin").status, 0);
  const auto json =
      nlohmann::json::parse(run("--json --gpu h200 " FIXTURES "/gencode_both.fatbin").text, nullptr, false);
  ASSERT_FALSE(json.is_discarded());
  EXPECT_EQ(json["gpu"]["sm"], 90);
  EXPECT_EQ(json["n_kernels"], 5);
  EXPECT_EQ(json["n_can_be_cut"], 1);
  EXPECT_EQ(json["share"], 0.2);
  EXPECT_EQ(json["outcomes"]["order"], 1);
  EXPECT_EQ(json["kernels"].size(), 5u);
  const auto program = run("--gpu h200 " TESSERA_TRAINER);
  EXPECT_EQ(program.status, 0);
  EXPECT_EQ(program.text.find("nothing of this file runs"), std::string::npos) << program.text;
}

}  // namespace
}  // namespace tessera::cli
