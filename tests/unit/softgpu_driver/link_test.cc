// The JIT linker: PTX modules that refer to one another.
#include <cstdio>
#include <cstring>
#include <string>

#include "support.h"

namespace softgpu_driver_test {
namespace {

constexpr char kHead[] = ".version 8.0\n.target sm_75\n.address_size 64\n";

// main(p): p[0] = helper(5) + own(1) + counter; counter is defined elsewhere.
const std::string kMain = std::string(kHead) + R"(
.extern .func (.param .b32 result) helper(.param .b32 x);
.extern .global .align 4 .u32 counter;
.global .align 4 .u32 table[2] = {100, 200};
.func (.param .b32 result) own(.param .b32 x)
{
  .reg .b32 %r<4>;
  .reg .b64 %rd<4>;
  ld.param.u32 %r1, [x];
  mul.wide.u32 %rd1, %r1, 4;
  mov.u64 %rd2, table;
  add.s64 %rd3, %rd2, %rd1;
  ld.global.u32 %r2, [%rd3];
  st.param.b32 [result], %r2;
  ret;
}
.visible .entry main(.param .u64 p)
{
  .reg .b32 %r<8>;
  .reg .b64 %rd<3>;
  ld.param.u64 %rd1, [p];
  mov.u32 %r1, 5;
  { .param .b32 a; .param .b32 b; st.param.b32 [a], %r1; call (b), helper, (a); ld.param.b32 %r2, [b]; }
  mov.u32 %r3, 1;
  { .param .b32 a; .param .b32 b; st.param.b32 [a], %r3; call (b), own, (a); ld.param.b32 %r4, [b]; }
  ld.global.u32 %r5, [counter];
  add.u32 %r6, %r2, %r4;
  add.u32 %r7, %r6, %r5;
  st.global.u32 [%rd1], %r7;
  ret;
}
)";
// helper(x) = own(x), with private names that `main` has too, and a weak counter.
const std::string kHelper = std::string(kHead) + R"(
.weak .global .align 4 .u32 counter = 7000;
.global .align 4 .u32 table[1] = {30};
.global .align 8 .u64 pointer = generic(table);
.func (.param .b32 result) own(.param .b32 x)
{
  .reg .b32 %r<4>;
  .reg .b64 %rd<3>;
  ld.param.u32 %r1, [x];
  ld.global.u64 %rd1, [pointer];
  ld.global.u32 %r2, [%rd1];
  add.u32 %r3, %r1, %r2;
  st.param.b32 [result], %r3;
  ret;
}
.visible .func (.param .b32 result) helper(.param .b32 x)
{
  .reg .b32 %r<3>;
  ld.param.u32 %r1, [x];
  { .param .b32 a; .param .b32 b; st.param.b32 [a], %r1; call (b), own, (a); ld.param.b32 %r2, [b]; }
  st.param.b32 [result], %r2;
  ret;
}
)";
const std::string kCounter = std::string(kHead) + ".visible .global .align 4 .u32 counter = 4000;\n";

class LinkTest : public Cuda {
 protected:
  void SetUp() override {
    Cuda::SetUp();
    values_[0] = log_;
    values_[1] = reinterpret_cast<void*>(sizeof log_);
    ASSERT_CU(cuLinkCreate(2, options_, values_, &state_));
  }
  void TearDown() override {
    EXPECT_CU(cuLinkDestroy(state_));
    EXPECT_EQ(CUDA_ERROR_INVALID_HANDLE, cuLinkDestroy(state_));
    Cuda::TearDown();
  }
  CUresult add(const std::string& ptx, const char* name) {
    return cuLinkAddData(state_, CU_JIT_INPUT_PTX, const_cast<char*>(ptx.c_str()), ptx.size() + 1, name, 0,
                         nullptr, nullptr);
  }
  uint32_t run() {
    void* image = nullptr;
    size_t bytes = 0;
    EXPECT_CU(cuLinkComplete(state_, &image, &bytes)) << log_;
    CUmodule linked;
    CUfunction f;
    EXPECT_CU(cuModuleLoadData(&linked, image));
    EXPECT_CU(cuModuleGetFunction(&f, linked, "main"));
    const CUdeviceptr p = alloc(4);
    EXPECT_CU(launch(f, 1, 1, nullptr, p));
    return read(p, 1)[0];
  }

  CUlinkState state_ = nullptr;
  char log_[512] = {};
  CUjit_option options_[2] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  void* values_[2] = {};
};

TEST_F(LinkTest, DeclarationsMeetDefinitions) {
  EXPECT_CU(add(kMain, "main.ptx"));
  EXPECT_CU(add(kHelper, "helper.ptx"));
  EXPECT_EQ(run(), 35u + 200 + 7000);
}

TEST_F(LinkTest, StrongDefinitionsWin) {
  EXPECT_CU(add(kHelper, "helper.ptx"));
  EXPECT_CU(add(kMain, "main.ptx"));
  EXPECT_CU(add(kCounter, "counter.ptx"));
  EXPECT_EQ(run(), 35u + 200 + 4000);
}

TEST_F(LinkTest, FilesAndFatBinaries) {
  char path[] = "/tmp/softgpu-link-XXXXXX";
  const int fd = mkstemp(path);
  ASSERT_GE(fd, 0);
  FILE* file = fdopen(fd, "w");
  fputs(kHelper.c_str(), file);
  fclose(file);
  EXPECT_CU(add(kMain, "main.ptx"));
  EXPECT_CU(cuLinkAddFile(state_, CU_JIT_INPUT_PTX, path, 0, nullptr, nullptr));
  EXPECT_CU(cuLinkAddFile(state_, CU_JIT_INPUT_FATBINARY, TESSERA_TEST_IMAGES "/kernel_default.fatbin", 0,
                          nullptr, nullptr));
  EXPECT_EQ(CUDA_ERROR_FILE_NOT_FOUND,
            cuLinkAddFile(state_, CU_JIT_INPUT_PTX, "/nonexistent.ptx", 0, nullptr, nullptr));
  EXPECT_EQ(CUDA_ERROR_FILE_NOT_FOUND, cuLinkAddFile(state_, CU_JIT_INPUT_PTX, "/tmp", 0, nullptr, nullptr));
  EXPECT_EQ(CUDA_ERROR_NO_BINARY_FOR_GPU,
            cuLinkAddFile(state_, CU_JIT_INPUT_CUBIN, TESSERA_TEST_IMAGES "/kernel_sass.cubin", 0, nullptr,
                          nullptr));
  EXPECT_EQ(run(), 35u + 200 + 7000);
  remove(path);
}

TEST_F(LinkTest, UndefinedAndDoubleNames) {
  EXPECT_CU(add(kMain, "main.ptx"));
  EXPECT_CU(add(kCounter, "one.ptx"));
  EXPECT_CU(add(kCounter, "two.ptx"));
  void* image;
  size_t bytes;
  EXPECT_EQ(CUDA_ERROR_UNKNOWN, cuLinkComplete(state_, &image, &bytes));
  EXPECT_TRUE(std::strstr(log_, "Undefined reference to 'helper' in 'main.ptx'")) << log_;
  EXPECT_TRUE(std::strstr(log_, "Multiple definition of 'counter' in 'two.ptx'")) << log_;
  EXPECT_EQ(size_t(reinterpret_cast<uintptr_t>(values_[1])), std::strlen(log_));
}

TEST_F(LinkTest, BadInput) {
  EXPECT_EQ(CUDA_ERROR_INVALID_PTX, add(std::string(kHead) + ".visible .entry k( nonsense", "bad.ptx"));
  EXPECT_TRUE(std::strstr(log_, "bad.ptx")) << log_;
  char text[] = "!<arch>\nnonsense that is no archive";
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE,
            cuLinkAddData(state_, CU_JIT_INPUT_PTX, nullptr, 4, "", 0, nullptr, nullptr));
  EXPECT_EQ(CUDA_ERROR_NOT_SUPPORTED,
            cuLinkAddData(state_, CU_JIT_INPUT_NVVM, text, sizeof text, "", 0, nullptr, nullptr));
  void* image;
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuLinkComplete(state_, &image, nullptr));  // nothing to link
}

}  // namespace
}  // namespace softgpu_driver_test
