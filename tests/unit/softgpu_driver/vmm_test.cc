// Virtual memory management: reservations, physical memory, mappings, access.
#include <unistd.h>

#include "support.h"

namespace softgpu_driver_test {
namespace {

constexpr size_t kMiB2 = size_t(2) << 20;

class Vmm : public Cuda {
 protected:
  static CUmemAllocationProp prop() {
    CUmemAllocationProp p = {};
    p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    p.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    return p;
  }
  static CUmemGenericAllocationHandle create(size_t bytes) {
    CUmemGenericAllocationHandle handle = 0;
    const CUmemAllocationProp p = prop();
    EXPECT_CU(cuMemCreate(&handle, bytes, &p, 0));
    return handle;
  }
  static CUdeviceptr reserve(size_t bytes) {
    CUdeviceptr p = 0;
    EXPECT_CU(cuMemAddressReserve(&p, bytes, 0, 0, 0));
    return p;
  }
  static CUresult access(CUdeviceptr p, size_t bytes, CUmemAccess_flags flags) {
    const CUmemAccessDesc desc = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, flags};
    return cuMemSetAccess(p, bytes, &desc, 1);
  }
};

TEST_F(Vmm, TwoHandlesInOneRange) {
  size_t granularity = 0;
  const CUmemAllocationProp p = prop();
  EXPECT_CU(cuMemGetAllocationGranularity(&granularity, &p, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  EXPECT_EQ(granularity, kMiB2);
  const CUdeviceptr range = reserve(3 * kMiB2);
  const auto a = create(kMiB2), b = create(kMiB2);
  EXPECT_CU(cuMemMap(range, kMiB2, 0, a, 0));
  EXPECT_CU(cuMemMap(range + kMiB2, kMiB2, 0, b, 0));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMemMap(range, kMiB2, 0, b, 0));  // taken
  EXPECT_CU(access(range, 2 * kMiB2, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, access(range, 3 * kMiB2, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
  // Across the seam: fills and copies as well as kernels.
  EXPECT_CU(cuMemsetD32(range + kMiB2 - 64, 7, 32));
  EXPECT_CU(launch(function("add"), 1, 32, nullptr, range + kMiB2 - 64, 1u, 32u));
  const std::vector<uint32_t> words = read(range + kMiB2 - 64, 32);
  EXPECT_EQ(words, std::vector<uint32_t>(32, 8));
  // The same physical memory at a second address.
  const CUdeviceptr again = reserve(kMiB2);
  EXPECT_CU(cuMemMap(again, kMiB2, 0, b, 0));
  EXPECT_CU(access(again, kMiB2, CU_MEM_ACCESS_FLAGS_PROT_READ));
  EXPECT_EQ(8u, read(again, 1)[0]);
  // Released handles live on in their mappings.
  EXPECT_CU(cuMemRelease(a));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMemRelease(a));
  EXPECT_EQ(8u, read(range + kMiB2 - 4, 1)[0]);
  CUmemGenericAllocationHandle kept = 0;
  EXPECT_CU(cuMemRetainAllocationHandle(&kept, reinterpret_cast<void*>(range + 4096)));
  EXPECT_CU(cuMemUnmap(range, 2 * kMiB2));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMemUnmap(range, kMiB2));
  EXPECT_CU(cuMemMap(range + 2 * kMiB2, kMiB2, 0, kept, 0));  // with its contents
  EXPECT_CU(access(range + 2 * kMiB2, kMiB2, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
  EXPECT_EQ(8u, read(range + 3 * kMiB2 - 4, 1)[0]);
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMemAddressFree(range, 3 * kMiB2));  // still mapped
  EXPECT_CU(cuMemUnmap(range + 2 * kMiB2, kMiB2));
  EXPECT_CU(cuMemAddressFree(range, 3 * kMiB2));
  EXPECT_CU(cuMemRelease(kept));
  EXPECT_CU(cuMemUnmap(again, kMiB2));
  EXPECT_CU(cuMemAddressFree(again, kMiB2));
  EXPECT_CU(cuMemRelease(b));
}

TEST_F(Vmm, AccessIsEnforcedForCopies) {
  const CUdeviceptr range = reserve(kMiB2);
  const auto handle = create(kMiB2);
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMemsetD32(range, 1, 4));  // nothing there
  EXPECT_CU(cuMemMap(range, kMiB2, 0, handle, 0));
  uint32_t word = 0;
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH(&word, range, 4));  // no access yet
  EXPECT_CU(access(range, kMiB2, CU_MEM_ACCESS_FLAGS_PROT_READ));
  EXPECT_CU(cuMemcpyDtoH(&word, range, 4));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMemsetD32(range, 1, 4));
  const CUmemLocation here = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  unsigned long long flags = 0;
  EXPECT_CU(cuMemGetAccess(&flags, &here, range + 4096));
  EXPECT_EQ(flags, CU_MEM_ACCESS_FLAGS_PROT_READ);
  EXPECT_CU(access(range, kMiB2, CU_MEM_ACCESS_FLAGS_PROT_NONE));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH(&word, range, 4));
  EXPECT_CU(cuMemUnmap(range, kMiB2));
  EXPECT_CU(cuMemAddressFree(range, kMiB2));
  EXPECT_CU(cuMemRelease(handle));
}

// One kernel each, since the fault stays with the context.
class VmmFault : public Vmm, public ::testing::WithParamInterface<CUmemAccess_flags> {};
TEST_P(VmmFault, KernelWithoutWriteAccess) {
  const CUdeviceptr range = reserve(kMiB2);
  const auto handle = create(kMiB2);
  EXPECT_CU(cuMemMap(range, kMiB2, 0, handle, 0));
  EXPECT_CU(access(range, kMiB2, GetParam()));
  EXPECT_CU(launch(function("fill"), 1, 32, nullptr, range, 1u, 32u));
  EXPECT_EQ(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
  EXPECT_CU(cuCtxDestroy(context));
  context = nullptr;
  EXPECT_CU(cuMemUnmap(range, kMiB2));
  EXPECT_CU(cuMemAddressFree(range, kMiB2));
  EXPECT_CU(cuMemRelease(handle));
}
INSTANTIATE_TEST_SUITE_P(All, VmmFault,
                         ::testing::Values(CU_MEM_ACCESS_FLAGS_PROT_NONE, CU_MEM_ACCESS_FLAGS_PROT_READ));

TEST_F(Vmm, BadArguments) {
  CUdeviceptr p = 0;
  CUmemGenericAllocationHandle handle = 0;
  CUmemAllocationProp bad = prop();
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMemAddressReserve(&p, 4096, 0, 0, 0));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMemAddressReserve(&p, kMiB2, 3, 0, 0));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMemAddressFree(kMiB2, kMiB2));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&handle, 4096, &bad, 0));
  bad.location.id = 9;
  EXPECT_EQ(CUDA_ERROR_INVALID_DEVICE, cuMemCreate(&handle, kMiB2, &bad, 0));
  bad.location.type = CU_MEM_LOCATION_TYPE_HOST;
  EXPECT_EQ(CUDA_ERROR_NOT_SUPPORTED, cuMemCreate(&handle, kMiB2, &bad, 0));
  const CUmemAllocationProp good = prop();
  EXPECT_EQ(CUDA_ERROR_OUT_OF_MEMORY, cuMemCreate(&handle, size_t(64) << 40, &good, 0));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMemRelease(12345));
  size_t before, after, total;
  EXPECT_CU(cuMemGetInfo(&before, &total));
  handle = create(4 * kMiB2);
  EXPECT_CU(cuMemGetInfo(&after, &total));
  EXPECT_EQ(before - after, 4 * kMiB2);
  int fd = -1;
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE,
            cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE,
            cuMemImportFromShareableHandle(&handle, nullptr, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMemMap(kMiB2, kMiB2, 0, handle, 0));  // not reserved
  EXPECT_CU(cuMemRelease(handle));
  EXPECT_CU(cuMemGetInfo(&after, &total));
  EXPECT_EQ(before, after);
  // A place that is free can be wished for.
  const CUdeviceptr first = reserve(kMiB2);
  EXPECT_CU(cuMemAddressFree(first, kMiB2));
  EXPECT_CU(cuMemAddressReserve(&p, kMiB2, 0, first, 0));
  EXPECT_EQ(p, first);
  CUdeviceptr other = 0;
  EXPECT_CU(cuMemAddressReserve(&other, kMiB2, 64 << 20, first, 0));
  EXPECT_NE(other, first);
  EXPECT_EQ(other % (64 << 20), 0u);
  EXPECT_CU(cuMemAddressFree(p, kMiB2));
  EXPECT_CU(cuMemAddressFree(other, kMiB2));
}

}  // namespace
}  // namespace softgpu_driver_test
