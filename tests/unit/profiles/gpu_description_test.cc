// The loader of GPU descriptions: every shipped file is good, bad files say where and why.
#include "profiles/gpu_description.h"

#include <fstream>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::profiles {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

std::string file_of(const std::string& gpu) {
  return TESSERA_SOURCE_DIR "/profiles/gpus/" + gpu + ".toml";
}

std::string text_of(const std::string& gpu) {
  std::ifstream file(file_of(gpu));
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

int attribute(const GpuDescription& gpu, int number) {
  int value = -12345;
  EXPECT_TRUE(gpu_attribute(gpu, number, &value)) << number;
  return value;
}

class Shipped : public testing::TestWithParam<const char*> {};

TEST_P(Shipped, LoadsAndIsConsistent) {
  auto loaded = load_gpu_description(file_of(GetParam()));
  ASSERT_TRUE(loaded.ok()) << loaded.error().text;
  const GpuDescription& gpu = *loaded;
  EXPECT_GE(gpu.sm.shared_bytes, gpu.block.shared_optin_bytes + gpu.block.reserved_shared_bytes);
  EXPECT_EQ(attribute(gpu, 16), int(gpu.sm.count));
  EXPECT_EQ(attribute(gpu, 10), 32);
  EXPECT_EQ(attribute(gpu, 75), int(gpu.cc_major));
  EXPECT_EQ(attribute(gpu, 13), int(gpu.sm.clock_hz / 1e3));
  // fp32 peak is what the issue rate allows (one fused multiply-add per lane), on every architecture
  // described here.
  double from_issue = gpu.issue_per_s() * gpu.sm.count * 64;
  EXPECT_NEAR(from_issue / gpu.peak.fp32, 1.0, gpu.cc_major == 8 && gpu.cc_minor == 0 ? 1.1 : 0.05);
}
INSTANTIATE_TEST_SUITE_P(Files, Shipped,
                         testing::Values("b200", "h200", "h100", "a100", "l4", "rtx4090", "rtx5090", "gb10",
                                         "gh200", "test4"));

TEST(GpuDescription, Test4LeavesTheCpuRoom) {
  auto gpu = load_gpu_description(file_of("test4"));
  ASSERT_TRUE(gpu.ok()) << gpu.error().text;
  EXPECT_EQ(gpu->sm.count, 4u);
  EXPECT_NEAR(gpu->issue_per_s() * gpu->sm.count, 24e6, 1e3);  // a tenth of 250 M/s, one core at 4 ns
  EXPECT_DOUBLE_EQ(gpu->time.timeslice_ns, 2e6);
}

TEST(GpuDescription, UuidsDifferAndAreStable) {
  auto a = load_gpu_description(file_of("h100")), b = load_gpu_description(file_of("h200"));
  auto again = load_gpu_description(file_of("h100"));
  EXPECT_NE(a->uuid, b->uuid);
  EXPECT_EQ(a->uuid, again->uuid);
}

TEST(GpuDescription, EveryAttributeNumberIsKnown) {
  auto gpu = load_gpu_description(file_of("h200"));
  for (int number = 1; number <= 147; ++number) attribute(*gpu, number);
  int value = 0;
  EXPECT_FALSE(gpu_attribute(*gpu, 0, &value));
  EXPECT_FALSE(gpu_attribute(*gpu, 100000, &value));
}

TEST(GpuDescription, AttributeSectionOverrides) {
  auto gpu = parse_gpu_description(text_of("test4") + "\n[attributes]\npci_bus_id = 77\n", "x.toml");
  ASSERT_TRUE(gpu.ok()) << gpu.error().text;
  EXPECT_EQ(attribute(*gpu, 33), 77);
}

TEST(GpuDescription, OccupancyByEachLimit) {
  auto gpu = load_gpu_description(file_of("h100"));
  EXPECT_EQ(blocks_per_sm(*gpu, 1024, 32, 0), 2u);      // threads
  EXPECT_EQ(blocks_per_sm(*gpu, 32, 16, 0), 32u);       // blocks
  EXPECT_EQ(blocks_per_sm(*gpu, 256, 128, 0), 2u);      // registers: 8 warps x 4096
  EXPECT_EQ(blocks_per_sm(*gpu, 128, 32, 100000), 2u);  // shared memory, 1 KiB reserved each
  EXPECT_EQ(blocks_per_sm(*gpu, 128, 32, 300000), 0u);
}

struct Bad {
  std::string from, to, message;
};

TEST(GpuDescription, BadFilesNameThePlace) {
  const Bad cases[] = {
      {"count = 4", "count = 0", "'sm.count' is 0, must be between 1 and 1024"},
      {"count = 4", "count = \"four\"", "'sm.count' must be a number"},
      {"count = 4", "cuont = 4", "unknown key 'sm.cuont'"},
      {"count = 4", "", "missing key 'sm.count'"},
      {"[sm]", "[ms]", "unknown section or key 'ms'"},
      {"compute_capability = [9, 0]", "compute_capability = 9", "compute_capability"},
      {"uuid_seed =", "uuid_seeds =", "uuid_seed"},
      {"gb_per_s = 0.4", "gb_per_s = nan", "'memory.gb_per_s' is nan"},
      {"[time]", "[attributes]\nno_such = 1\n[time]", "unknown device attribute 'no_such'"},
      {"[time]", "[time", "x.toml"},
  };
  for (const Bad& bad : cases) {
    auto gpu = parse_gpu_description(replaced(text_of("test4"), bad.from, bad.to), "x.toml");
    ASSERT_FALSE(gpu.ok()) << bad.to;
    EXPECT_THAT(gpu.error().text, StartsWith("x.toml:")) << bad.to;
    EXPECT_THAT(gpu.error().text, HasSubstr(bad.message)) << bad.to;
  }
}

TEST(GpuDescription, ErrorHasLineAndColumn) {
  auto gpu = parse_gpu_description("name = \"x\"\nuuid_seed = \"x\"\n  bogus = 1\n", "x.toml");
  ASSERT_FALSE(gpu.ok());
  EXPECT_THAT(gpu.error().text, StartsWith("x.toml:3:3: unknown section or key 'bogus'"));
}

TEST(GpuDescription, OnlyAscii) {
  auto gpu = parse_gpu_description("name = \"x\"\n# caf\u00e9\n", "x.toml");
  ASSERT_FALSE(gpu.ok());
  EXPECT_THAT(gpu.error().text, StartsWith("x.toml:2:6: only ASCII"));
}

TEST(GpuDescription, MissingFileSaysWhatToSet) {
  auto gpu = load_gpu_description("/nonexistent/x.toml");
  ASSERT_FALSE(gpu.ok());
  EXPECT_THAT(gpu.error().text, HasSubstr("TESSERA_SOFTGPU_GPU"));
}

// Data sheet, white paper, measured, awaits hardware, chosen: a figure without a source is a rumour.
TEST(GpuDescriptions, EveryFigureSaysWhereItIsFrom) {
  for (const char* name :
       {"b200", "h200", "h100", "a100", "l4", "rtx4090", "rtx5090", "gb10", "gh200", "test4"}) {
    std::ifstream file(std::string(TESSERA_SOURCE_DIR "/profiles/gpus/") + name + ".toml");
    std::string section;
    int figures = 0;
    for (std::string line; std::getline(file, line);) {
      if (line.starts_with("[")) section = line;
      if (section.empty() || line.find(" = ") == line.npos || line.starts_with("#")) continue;
      ++figures;
      const size_t comment = line.find('#');
      EXPECT_TRUE(comment != line.npos && comment + 2 < line.size()) << name << ": " << line;
    }
    EXPECT_GT(figures, 25) << name;
  }
}

}  // namespace
}  // namespace tessera::profiles
