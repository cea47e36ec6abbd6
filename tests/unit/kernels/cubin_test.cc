// Against what ptxas says of the same kernels (ptxas -v) and what their source declares.
#include "kernels/image/cubin.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>

#include "fixtures.h"

namespace tessera::image {
namespace {

LoadedEntry cubin() {
  const std::string bytes = fixture("kernels.cubin");
  auto entries = read({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
  EXPECT_TRUE(entries.ok());
  return entries.ok() ? (*entries)[0] : LoadedEntry{};
}

const CubinKernel* find(const std::vector<CubinKernel>& kernels, const char* name) {
  for (const CubinKernel& k : kernels)
    if (k.name == name) return &k;
  return nullptr;
}

TEST(Cubin, RegistersSharedMemoryAndParameters) {
  auto kernels = cubin_kernels(cubin().payload);
  ASSERT_TRUE(kernels.ok()) << kernels.error().text;
  const CubinKernel* add = find(*kernels, "accepted_add");  // (const float*, const float*, float*, int)
  ASSERT_NE(add, nullptr);
  EXPECT_EQ(add->param_bytes, 28u);
  ASSERT_EQ(add->parameters.size(), 4u);
  const uint32_t offsets[] = {0, 8, 16, 24}, bytes[] = {8, 8, 8, 4};
  for (uint32_t i = 0; i < 4; ++i) {
    EXPECT_EQ(add->parameters[i].index, i);
    EXPECT_EQ(add->parameters[i].offset, offsets[i]);
    EXPECT_EQ(add->parameters[i].bytes, bytes[i]);
  }
  EXPECT_GE(add->constant_bytes, 0x160u + 28);  // sm_75 puts parameters at c[0][0x160]
  EXPECT_EQ(add->shared_bytes, 0u);
  const CubinKernel* sum = find(*kernels, "accepted_block_sum");
  ASSERT_NE(sum, nullptr);
  EXPECT_EQ(sum->shared_bytes, 1024u);
  EXPECT_EQ(sum->max_threads, 256u);
  EXPECT_FALSE(sum->cluster);
  for (const CubinKernel& k : *kernels) {
    EXPECT_GE(k.registers, 2u) << k.name;
    EXPECT_LE(k.registers, 255u) << k.name;
    EXPECT_GT(k.code_bytes, 0u) << k.name;
    EXPECT_TRUE(k.unknown_attributes.empty()) << k.name << ": " << int(k.unknown_attributes[0]);
  }
  EXPECT_EQ(find(*kernels, "counter"), nullptr);  // a variable
}

// As ptxas writes it; the other variable is an ordinary one.
TEST(Cubin, AManagedVariableIsSeenInTextAndMachineCode) {
  const auto compiled = [](const std::string& text) {
    char file[] = "/tmp/tessera-managed-XXXXXX";
    const int fd = mkstemp(file);
    EXPECT_GE(fd, 0);
    EXPECT_EQ(write(fd, text.data(), text.size()), ssize_t(text.size()));
    close(fd);
    const std::string out = std::string(file) + ".cubin";
    EXPECT_EQ(system((std::string(PTXAS) + " -arch=sm_75 -o " + out + ' ' + file).c_str()), 0);
    std::ifstream in(out, std::ios::binary);
    std::vector<uint8_t> code(std::istreambuf_iterator<char>(in), {});
    unlink(out.c_str());
    unlink(file);
    return code;
  };
  const auto text = [](const char* attribute) {
    return std::string(".version 8.0\n.target sm_75\n.address_size 64\n.visible .global ") + attribute +
           " .align 4 .u32 v = 7;\n.visible .global .u32 w;\n";
  };
  for (const auto& [attribute, managed] : {std::pair(".attribute(.managed)", true), std::pair("", false)}) {
    const std::string ptx = text(attribute);
    const std::vector<uint8_t> code = compiled(ptx);
    EXPECT_EQ(
        has_managed_variable(EntryKind::kPtx, {reinterpret_cast<const uint8_t*>(ptx.data()), ptx.size()}),
        managed);
    EXPECT_EQ(has_managed_variable(EntryKind::kCubin, code), managed);
  }
  EXPECT_TRUE(has_managed_variable(EntryKind::kCubin, {})) << "nobody can know";
}

TEST(Cubin, RegistersAreThoseOfPtxas) {
  auto kernels = cubin_kernels(cubin().payload);
  ASSERT_TRUE(kernels.ok());
  FILE* in =
      popen((std::string(PTXAS) + " -v -arch=sm_75 -o /dev/null " FIXTURES "/kernels.ptx 2>&1").c_str(), "r");
  std::string kernel;
  int compared = 0;
  char line[512];
  while (fgets(line, sizeof line, in)) {
    char name[256];
    unsigned registers = 0;
    const char* compiling = strstr(line, "Compiling entry function '");
    const char* used = strstr(line, "Used ");
    if (compiling && sscanf(compiling, "Compiling entry function '%255[^']'", name) == 1) kernel = name;
    if (!used || sscanf(used, "Used %u registers", &registers) != 1) continue;
    const CubinKernel* found = find(*kernels, kernel.c_str());
    ASSERT_NE(found, nullptr) << kernel;
    EXPECT_EQ(found->registers, registers) << kernel;
    ++compared;
  }
  pclose(in);
  EXPECT_EQ(size_t(compared), kernels->size());
}

TEST(Cubin, EveryTruncationIsAnErrorOrFewerKernels) {
  const LoadedEntry whole = cubin();
  for (size_t n = 0; n < whole.payload.size(); n += 97) {
    const std::vector<uint8_t> cut(whole.payload.begin(), whole.payload.begin() + long(n));
    (void)cubin_kernels(cut);  // must not read outside: the sanitizer run shows it
  }
  EXPECT_FALSE(cubin_kernels({}).ok());
}

// A kernel for a target, by ptxas; `linked`: as a whole program or as an object of one translation unit.
LoadedEntry assembled(const std::string& target, bool linked, const std::string& directive = "") {
  const std::string base = testing::TempDir() + "cubin_test_" + target;
  FILE* out = fopen((base + ".ptx").c_str(), "w");
  fprintf(
      out,
      ".version 8.8\n.target %s\n.address_size 64\n.visible .entry k() %s {\n  bar.sync 1, 32;\n  ret;\n}\n",
      target.c_str(), directive.c_str());
  fclose(out);
  const std::string command = std::string(PTXAS) + (linked ? "" : " -c") + " -arch=" + target + " -o " +
                              base + ".cubin " + base + ".ptx";
  EXPECT_EQ(system(command.c_str()), 0) << command;
  FILE* in = fopen((base + ".cubin").c_str(), "rb");
  std::vector<uint8_t> bytes(1 << 16);
  bytes.resize(in ? fread(bytes.data(), 1, bytes.size(), in) : 0);
  if (in) fclose(in);
  remove((base + ".ptx").c_str());
  remove((base + ".cubin").c_str());
  auto entries = read(bytes);
  EXPECT_TRUE(entries.ok());
  return entries.ok() ? (*entries)[0] : LoadedEntry{};
}

TEST(Target, LetterOfABareCubin) {
  struct Row {
    const char* target;
    unsigned sm;
    bool a, f;
  };
  for (const Row& row : {Row{"sm_90", 90, false, false}, Row{"sm_90a", 90, true, false},
                         Row{"sm_100f", 100, false, true}, Row{"sm_120a", 120, true, false}}) {
    const LoadedEntry e = assembled(row.target, true);
    EXPECT_EQ(e.sm, row.sm) << row.target;
    EXPECT_EQ(e.arch_specific, row.a) << row.target;
    EXPECT_EQ(e.family_specific, row.f) << row.target;
    EXPECT_FALSE(e.relocatable);
  }
}

TEST(Target, BeforeToolkit13TheHeaderSaysIt) {
  LoadedEntry e = assembled("sm_90", true);
  e.payload[8] = 7;  // ELF ABI
  const uint32_t flags = 0x5a0d5a, plain = 0x5a055a;
  for (uint32_t value : {flags, plain}) {
    memcpy(e.payload.data() + 48, &value, sizeof value);
    auto entries = read(e.payload);
    ASSERT_TRUE(entries.ok());
    EXPECT_EQ((*entries)[0].sm, 90u);
    EXPECT_EQ((*entries)[0].arch_specific, value == flags);
  }
}

TEST(Cubin, ObjectsOfATranslationUnitAreNamed) {
  const LoadedEntry e = assembled("sm_80", false);
  EXPECT_TRUE(e.relocatable);
  EXPECT_EQ(choose({e}, 80), nullptr);
  auto kernels = cubin_kernels(e.payload);
  ASSERT_TRUE(kernels.ok()) << kernels.error().text;
  ASSERT_EQ(kernels->size(), 1u);
  EXPECT_EQ((*kernels)[0].name, "k");
}

TEST(Cubin, ClustersAndBarriers) {
  const LoadedEntry fixed = assembled("sm_90", true, ".reqnctapercluster 2, 3, 1");
  auto kernels = cubin_kernels(fixed.payload);
  ASSERT_TRUE(kernels.ok() && kernels->size() == 1);
  EXPECT_TRUE((*kernels)[0].cluster);
  EXPECT_EQ((*kernels)[0].cluster_shape, (std::array<uint32_t, 3>{2, 3, 1}));
  EXPECT_EQ((*kernels)[0].barriers, 2u);
  EXPECT_TRUE((*kernels)[0].unknown_attributes.empty());
  kernels = cubin_kernels(assembled("sm_90", true, ".explicitcluster .maxclusterrank 8").payload);
  ASSERT_TRUE(kernels.ok() && kernels->size() == 1);
  EXPECT_TRUE((*kernels)[0].cluster);
  EXPECT_EQ((*kernels)[0].max_cluster_rank, 8u);
  EXPECT_EQ((*kernels)[0].cluster_shape, (std::array<uint32_t, 3>{}));
  kernels = cubin_kernels(assembled("sm_90", true).payload);
  ASSERT_TRUE(kernels.ok() && kernels->size() == 1);
  EXPECT_FALSE((*kernels)[0].cluster);
}

TEST(Parts, OneContainerAfterAnother) {
  std::string bytes = fixture("none.fatbin");
  const size_t one = bytes.size();
  bytes += std::string((8 - one % 8) % 8, '\0') + fixture("size.fatbin");
  auto split = parts({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
  ASSERT_TRUE(split.ok());
  ASSERT_EQ(split->size(), 2u);
  auto first = read((*split)[0]), second = read((*split)[1]);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->size(), second->size());
  EXPECT_STREQ((*first)[0].compression, "none");
  EXPECT_STREQ((*second)[0].compression, "zstd");
  EXPECT_EQ((*first)[0].payload, (*second)[0].payload);
  EXPECT_LT((*second)[0].stored_bytes, (*first)[0].stored_bytes);
}

}  // namespace
}  // namespace tessera::image
