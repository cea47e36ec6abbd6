// Opening drivers of every sort: a sane one, an old one, one whose own references bind elsewhere, ourselves,
// none.
#include "driver_api/open_driver.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include "driver_api/answers.h"

// This program exports an entry point, as the shim does; a driver that was linked without -Bsymbolic binds
// its own references to it.
extern "C" __attribute__((visibility("default"))) CUresult cuCtxGetDevice(CUdevice*) {
  return CUDA_ERROR_UNKNOWN;
}

namespace tessera::driver_api {
namespace {

SearchPlaces only(const char* path) {
  SearchPlaces places;
  places.explicit_path = path;
  return places;
}
SearchPlaces nowhere() {
  SearchPlaces places;
  places.cache_file = nullptr;
  places.default_folders.clear();
  return places;
}
const int kSelf = 0;

template <class Function>
const void* address(Function* f) {
  return reinterpret_cast<const void*>(f);
}

TEST(OpenDriver, SlotsAnswerNotInitializedBeforehand) {
  EXPECT_EQ(real().cuCtxSynchronize(), CUDA_ERROR_NOT_INITIALIZED);
  for (uint16_t i = 0; i < kEntryCount; ++i) {
    ASSERT_EQ(real_slot(static_cast<Entry>(i)), address(&tessera_answer_not_initialized))
        << kEntryInfo[i].symbol;
  }
}

TEST(OpenDriver, SaneDriverFillsEveryRowWithItsOwnAddresses) {
  RealDriver table;
  const OpenedDriver driver = open_driver(only(NULL_DRIVER), &kSelf, &table);
  ASSERT_TRUE(driver.found);
  EXPECT_EQ(driver.path, NULL_DRIVER);
  EXPECT_EQ(driver.entries_missing, 0u);
  EXPECT_EQ(driver.captured_relocations, 0u);
  EXPECT_TRUE(driver.lookup_inside);
  EXPECT_FALSE(driver.reopened_deepbind);
  int version = 0;
  EXPECT_EQ(table.cuDriverGetVersion(&version), CUDA_SUCCESS);
  EXPECT_EQ(version, 13050);
  EXPECT_EQ(address(table.cuLaunchKernel), dlsym(driver.handle, "cuLaunchKernel"));
}

TEST(OpenDriver, OldDriverAnswersTheRestWithNotSupported) {
  RealDriver table;
  const OpenedDriver driver = open_driver(only(OLD_DRIVER), &kSelf, &table);
  ASSERT_TRUE(driver.found);
  EXPECT_EQ(driver.entries_missing, kEntryCount - 5u);
  EXPECT_EQ(table.cuInit(0), CUDA_SUCCESS);
  EXPECT_EQ(table.cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr),
            CUDA_ERROR_NOT_SUPPORTED);
}

TEST(OpenDriver, DriverBoundToOthersIsReopenedDeep) {
  RealDriver table;
  const OpenedDriver driver = open_driver(only(LEAKY_DRIVER), &kSelf, &table);
  ASSERT_TRUE(driver.found);
  if (dlsym(RTLD_DEFAULT, "__asan_init") != nullptr || dlsym(RTLD_DEFAULT, "__tsan_init") != nullptr) {
    EXPECT_FALSE(driver.reopened_deepbind) << "a sanitizer does not survive RTLD_DEEPBIND";
    EXPECT_GT(driver.captured_relocations, 0u);
    return;
  }
  EXPECT_TRUE(driver.reopened_deepbind);
  EXPECT_EQ(driver.captured_relocations, 0u);
  // cuCtxGetFlags of this driver calls its own cuCtxGetDevice; with the binding repaired it gets there.
  unsigned flags = 0;
  EXPECT_EQ(table.cuCtxGetFlags(&flags), CUDA_SUCCESS);
}

TEST(OpenDriver, ExportsThatTheTableLacksAreNamed) {
  RealDriver table;
  EXPECT_TRUE(unlisted_exports(open_driver(only(NULL_DRIVER), &kSelf, &table).handle).empty());
  EXPECT_EQ(unlisted_exports(open_driver(only(OLD_DRIVER), &kSelf, &table).handle),
            (std::vector<std::string>{"cuAncient", "cuFromTheFuture"}));
}

TEST(OpenDriver, NeverOpensTheLibraryThatAsks) {
  RealDriver table;
  void* handle = dlopen(NULL_DRIVER, RTLD_NOW);
  const OpenedDriver driver = open_driver(only(NULL_DRIVER), dlsym(handle, "cuInit"), &table);
  EXPECT_FALSE(driver.found);
}

TEST(OpenDriver, NeverOpensAnotherCopyOfTheShim) {
  RealDriver table;
  EXPECT_FALSE(open_driver(only(SHIM_COPY), &kSelf, &table).found);
}

TEST(OpenDriver, WithoutADriverProgramsGetErrorsThatTheyKnow) {
  RealDriver table;
  EXPECT_FALSE(open_driver(nowhere(), &kSelf, &table).found);
  int version = -1;
  void* p = &version;
  auto status = static_cast<CUdriverProcAddressQueryResult>(77);
  const char* text = nullptr;
  EXPECT_EQ(table.cuInit(0), CUDA_ERROR_NO_DEVICE);
  EXPECT_EQ(table.cuDriverGetVersion(&version), CUDA_SUCCESS);
  EXPECT_EQ(version, 0);
  EXPECT_EQ(table.cuDriverGetVersion(nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(table.cuGetProcAddress("cuInit", &p, 13000, 0), CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(p, &version);
  EXPECT_EQ(table.cuGetProcAddress_v2("cuInit", &p, 13000, 0, &status), CUDA_SUCCESS);
  EXPECT_EQ(p, nullptr);
  EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  EXPECT_EQ(table.cuGetProcAddress_v2("cuInit", nullptr, 13000, 0, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(table.cuGetErrorName(CUDA_ERROR_NO_DEVICE, &text), CUDA_SUCCESS);
  EXPECT_STREQ(text, "CUDA_ERROR_NO_DEVICE");
  EXPECT_EQ(table.cuGetErrorString(CUDA_ERROR_ASSERT, &text), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(text, nullptr);
}

TEST(OpenDriver, BrokenFilesArePassedOver) {
  RealDriver table;
  EXPECT_FALSE(open_driver(only("/etc/passwd"), &kSelf, &table).found);
}

}  // namespace
}  // namespace tessera::driver_api
