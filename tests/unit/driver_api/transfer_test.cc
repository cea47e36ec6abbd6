// The columns of actions.def against what the toolkit's header says: every copy and fill is called with
// arguments made from its declared parameter types alone.
#include "driver_api/transfer.h"

#include <gtest/gtest.h>

#include <string>
#include <type_traits>
#include <vector>

// Every row, declared once more: where the toolkit's headers declare it, too, this compiles only if they say the same.
#define TS_CU(symbol, base, since, stream, ret, params, args) extern "C" ret symbol params;
#include "driver_api/entries.def"

namespace tessera::driver_api {
namespace {

constexpr size_t kWidth = 640, kHeight = 480, kDepth = 3;

// Facts in the header's declaration, without the name.
struct Signature {
  bool stream = false, to_host = false, from_host = false, contexts = false, box = false;
  std::vector<size_t> integer_bytes;  // sizes of the integer parameters, in order
};

template <class T>
constexpr bool is_box =
    std::is_same_v<T, const CUDA_MEMCPY2D_v1*> || std::is_same_v<T, const CUDA_MEMCPY2D*> ||
    std::is_same_v<T, const CUDA_MEMCPY3D_v1*> || std::is_same_v<T, const CUDA_MEMCPY3D*> ||
    std::is_same_v<T, const CUDA_MEMCPY3D_PEER*>;

template <class T>
void look_at(Signature& s) {
  s.stream |= std::is_same_v<T, CUstream>;
  s.to_host |= std::is_same_v<T, void*>;
  s.from_host |= std::is_same_v<T, const void*>;
  s.contexts |= std::is_same_v<T, CUcontext> || std::is_same_v<T, const CUDA_MEMCPY3D_PEER*>;
  s.box |= is_box<T>;
  if constexpr (std::is_integral_v<T>) s.integer_bytes.push_back(sizeof(T));
}
template <class... A>
Signature signature(std::type_identity<CUresult(A...)>) {
  Signature s;
  (look_at<A>(s), ...);
  return s;
}

// One argument: a box of the sizes above, a list of three, the n-th integer as the test wants it.
struct Arguments {
  std::vector<uint64_t> integers;
  CUmemorytype from = CU_MEMORYTYPE_DEVICE, to = CU_MEMORYTYPE_DEVICE;
  size_t next = 0;
  size_t sizes[3] = {1000, 200, 30};
  CUDA_MEMCPY3D_BATCH_OP operations[2] = {};
  CUDA_FABRIC_COPY_BATCH_OP fabric[2] = {};

  template <class T>
  T make() {
    if constexpr (std::is_integral_v<T>) {
      return next < integers.size() ? static_cast<T>(integers[next++]) : T{};
    } else if constexpr (is_box<T>) {
      static std::remove_const_t<std::remove_pointer_t<T>> box;
      box = {};
      box.srcMemoryType = from;
      box.dstMemoryType = to;
      box.WidthInBytes = kWidth;
      box.Height = kHeight;
      if constexpr (requires { box.Depth; }) box.Depth = kDepth;
      return &box;
    } else if constexpr (std::is_same_v<T, CUDA_MEMCPY3D_BATCH_OP*>) {
      return operations;
    } else if constexpr (std::is_same_v<T, CUDA_FABRIC_COPY_BATCH_OP*>) {
      return fabric;
    } else if constexpr (std::is_same_v<T, size_t*>) {
      return sizes;
    } else {
      return T{};
    }
  }
};
template <class R, class... A>
R call(R (*function)(A...), Arguments arguments) {
  std::tuple<A...> made{arguments.make<A>()...};  // braces: from left to right
  return std::apply(function, made);
}

enum class Kind { kCopy, kFill };

// Arguments whose amount is known from the signature alone, and that amount.
uint64_t expected_bytes(Kind kind, const Signature& s, Arguments& a) {
  std::vector<uint64_t>& n = a.integers;
  n.assign(s.integer_bytes.size(), 9);  // addresses and offsets
  if (n.empty()) return 0;              // a structure carries the sizes
  if (kind == Kind::kFill) {            // address, [pitch], value, sizes
    const size_t dimensions = n.size() == 5 ? 2 : 1, value = n.size() - dimensions - 1;
    n.back() = 70;
    if (dimensions == 2) n[n.size() - 2] = 11;
    return s.integer_bytes[value] * 70 * (dimensions == 2 ? 11 : 1);
  }
  n.back() = 123'456;  // offsets and addresses come first
  return 123'456;
}

struct Row {
  const char* symbol;
  Kind kind;
  Signature header;
  Transfer (*describe)(Arguments);
};

const std::vector<Row> kRows = {
#define TS_HOOK_copy(symbol, base, since, stream, ret, params, args)          \
  {#symbol, Kind::kCopy, signature(std::type_identity<decltype(::symbol)>()), \
   [](Arguments a) { return call(&transfer::of_##symbol, a); }},
#define TS_HOOK_memset(symbol, base, since, stream, ret, params, args)        \
  {#symbol, Kind::kFill, signature(std::type_identity<decltype(::symbol)>()), \
   [](Arguments a) { return call(&transfer::of_##symbol, a); }},
#include "driver_api/hooks.def"
};

// Its sizes are in structures of their own, not in integer parameters.
bool is_batch(const Row& row) {
  const std::string s = row.symbol;
  return s.find("Batch") != std::string::npos || s.starts_with("cuMemcpy3DWithAttributes");
}

TEST(Transfers, AmountIsWhatTheSignatureCarries) {
  ASSERT_GE(kRows.size(), 100u);
  for (const Row& row : kRows) {
    if (is_batch(row)) continue;
    Arguments a;
    const uint64_t expected = expected_bytes(row.kind, row.header, a);
    if (row.header.box) {
      const bool flat = std::string(row.symbol).starts_with("cuMemcpy2D");
      EXPECT_EQ(row.describe(a).bytes, kWidth * kHeight * (flat ? 1 : kDepth)) << row.symbol;
      continue;
    }
    EXPECT_EQ(row.describe(a).bytes, expected) << row.symbol;
    a.integers.assign(a.integers.size(), 9);
    a.integers.back() = 0;
    EXPECT_EQ(row.describe(a).bytes, 0u) << row.symbol << ": an offset or a pitch was taken for a size";
  }
}

TEST(Transfers, DirectionAgreesWithTheTypes) {
  for (const Row& row : kRows) {
    if (row.header.box) continue;
    Arguments a;
    expected_bytes(row.kind, row.header, a);
    if (is_batch(row)) a.integers = {0, 0};
    const Direction direction = row.describe(a).direction;
    if (row.kind == Kind::kFill) {
      EXPECT_EQ(direction, Direction::kFill) << row.symbol;
    } else if (row.header.to_host) {
      EXPECT_EQ(direction, Direction::kDeviceToHost) << row.symbol;
    } else if (row.header.from_host) {
      EXPECT_EQ(direction, Direction::kHostToDevice) << row.symbol;
    } else if (row.header.contexts) {
      EXPECT_EQ(direction, Direction::kPeer) << row.symbol;
    } else {
      const bool named =
          std::string(row.symbol).find("to") != std::string::npos;  // cuMemcpyDtoD, cuMemcpyAtoA ...
      EXPECT_EQ(direction, named ? Direction::kWithinDevice : Direction::kUnknown) << row.symbol;
    }
  }
}

TEST(Transfers, StructuresTellTheDirection) {
  for (const Row& row : kRows) {
    if (!row.header.box || row.header.contexts) continue;
    Arguments a;
    EXPECT_EQ(row.describe(a).direction, Direction::kWithinDevice) << row.symbol;
    a.to = CU_MEMORYTYPE_ARRAY;
    EXPECT_EQ(row.describe(a).direction, Direction::kWithinDevice) << row.symbol;
    a.from = CU_MEMORYTYPE_HOST;
    EXPECT_EQ(row.describe(a).direction, Direction::kHostToDevice) << row.symbol;
    EXPECT_FALSE(row.describe(a).ended_on_return) << row.symbol;
    a.to = CU_MEMORYTYPE_HOST;
    EXPECT_EQ(row.describe(a).direction, Direction::kDeviceToHost) << row.symbol;
    EXPECT_EQ(row.describe(a).ended_on_return, !row.header.stream) << row.symbol;
    a.from = CU_MEMORYTYPE_UNIFIED;
    EXPECT_EQ(row.describe(a).direction, Direction::kUnknown) << row.symbol;
    EXPECT_FALSE(row.describe(a).ended_on_return) << row.symbol;
  }
}

// A call that takes a stream returns at once; of the others only a copy to the host proves anything.
TEST(Transfers, OnlyACopyToTheHostWithoutAStreamHasEndedOnReturn) {
  for (const Row& row : kRows) {
    if (row.header.box) continue;
    Arguments a;
    expected_bytes(row.kind, row.header, a);
    if (is_batch(row)) a.integers = {0, 0};
    EXPECT_EQ(row.describe(a).ended_on_return, row.header.to_host && !row.header.stream) << row.symbol;
  }
}

TEST(Transfers, BatchesAreSummed) {
  size_t sizes[3] = {1000, 200, 30};
  EXPECT_EQ(
      transfer::of_cuMemcpyBatchAsync_v2(nullptr, nullptr, sizes, 3, nullptr, nullptr, 0, nullptr).bytes,
      1230u);
  EXPECT_EQ(
      transfer::of_cuMemcpyBatchAsync(nullptr, nullptr, nullptr, 3, nullptr, nullptr, 0, nullptr, nullptr)
          .bytes,
      0u);
  CUDA_MEMCPY3D_BATCH_OP operations[2] = {};
  for (CUDA_MEMCPY3D_BATCH_OP& o : operations) {
    o.src.type = o.dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
    o.extent = {64, 8, 2};
  }
  EXPECT_EQ(transfer::of_cuMemcpy3DBatchAsync_v2(2, operations, 0, nullptr).bytes, 2u * 1024);
  operations[1].dst.type = CU_MEMCPY_OPERAND_TYPE_ARRAY;  // its elements may have up to 16 bytes
  EXPECT_EQ(transfer::of_cuMemcpy3DBatchAsync_ptsz(2, operations, nullptr, 0, nullptr).bytes,
            1024u + 16 * 1024);
  EXPECT_EQ(transfer::of_cuMemcpy3DWithAttributesAsync(operations, 0, nullptr).bytes, 1024u);
  EXPECT_EQ(transfer::of_cuMemcpy3DWithAttributesAsync_ptsz(nullptr, 0, nullptr).bytes, 0u);
  CUDA_FABRIC_COPY_BATCH_OP copies[2] = {};
  copies[0].size = 1000;
  copies[1].size = 24;
  EXPECT_EQ(transfer::of_cuFabricCpyBatchAsync(2, copies, 0, nullptr).bytes, 1024u);
  EXPECT_EQ(transfer::of_cuFabricCpyBatchAsync_ptsz(2, nullptr, 0, nullptr).bytes, 0u);
}

TEST(Transfers, GarbageSaturates) {
  EXPECT_EQ(transfer::of_cuMemsetD2D32_v2(0, 0, 0, SIZE_MAX, SIZE_MAX).bytes, UINT64_MAX);
  EXPECT_EQ(transfer::of_cuMemcpy2D_v2(nullptr).bytes, 0u);
  EXPECT_EQ(transfer::of_cuMemcpy2D_v2(nullptr).direction, Direction::kUnknown);
  size_t sizes[2] = {SIZE_MAX, SIZE_MAX};
  EXPECT_EQ(
      transfer::of_cuMemcpyBatchAsync_v2(nullptr, nullptr, sizes, 2, nullptr, nullptr, 0, nullptr).bytes,
      UINT64_MAX);
}

}  // namespace
}  // namespace tessera::driver_api
