// Against what ptxas says of the same kernels (ptxas -v) and what their source declares.
#include "kernels/image/cubin.h"

#include <gtest/gtest.h>

#include <cstring>

#include "fixtures.h"

namespace tessera::image {
namespace {

Entry cubin() {
  const std::string bytes = fixture("kernels.cubin");
  auto entries = read({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
  EXPECT_TRUE(entries.ok());
  return entries.ok() ? (*entries)[0] : Entry{};
}

const CubinKernel* find(const std::vector<CubinKernel>& kernels, const char* name) {
  for (const CubinKernel& k : kernels)
    if (k.name == name) return &k;
  return nullptr;
}

TEST(Cubin, RegistersSharedMemoryAndParameters) {
  auto kernels = cubin_kernels(cubin());
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

TEST(Cubin, RegistersAreThoseOfPtxas) {
  auto kernels = cubin_kernels(cubin());
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
  const Entry whole = cubin();
  for (size_t n = 0; n < whole.payload.size(); n += 97) {
    Entry cut = whole;
    cut.payload.resize(n);
    (void)cubin_kernels(cut);  // must not read outside: the sanitizer run shows it
  }
  Entry ptx;
  ptx.kind = EntryKind::kPtx;
  EXPECT_FALSE(cubin_kernels(ptx).ok());
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
