#include "operations/catalogue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <limits>
#include <regex>
#include <set>
#include <string>
#include <vector>

namespace tessera::operations {
namespace {

Form form_of(const EntryRow& row) {
  return kind_of(Entry(&row - entry_rows().data())).form;
}

TEST(Catalogue, FindsNamesWithBothWidthsOfIntegers) {
  for (const char* name : {"cublasSgemm_v2", "cublasSgemm_v2_64"}) {
    const EntryRow* row = find_entry(name);
    ASSERT_NE(row, nullptr) << name;
    EXPECT_EQ(row->symbol, "cublasSgemm_v2");
    EXPECT_EQ(form_of(*row), Form::kOne);
    EXPECT_EQ(row->type, Type::kF32);
  }
  for (const char* name : {"", "_64", "cublasSgemm", "cublasCreate_v2", "cublasZgemm_v2_64_64", "zzz"}) {
    EXPECT_EQ(find_entry(name), nullptr) << name;
  }
}

// Form and type of every row of cuBLAS, told by its name alone.
TEST(Catalogue, RowsAreWhatTheirNamesSay) {
  for (const EntryRow& row : entry_rows()) {
    if (row.library != Library::kCublas) continue;
    const std::string name(row.symbol);
    const auto says = [&](const char* word) { return name.find(word) != std::string::npos; };
    Form form = Form::kOne;
    if (says("StridedBatched"))
      form = Form::kStrided;
    else if (says("GroupedBatched"))
      form = Form::kGrouped;
    else if (says("Batched"))
      form = Form::kPointers;
    EXPECT_EQ(form_of(row), form) << name;
    Type type = Type::kFromArguments;
    if (!says("Ex")) {
      const bool is_search = std::regex_search(name, std::regex("^cublasI[sdcz]"));
      const bool has_real_result = std::regex_search(name, std::regex("^cublas(Sc|Dz)(nrm2|asum)"));
      switch (toupper(name.at(is_search || has_real_result ? 7 : 6))) {
        case 'S':
          type = Type::kF32;
          break;
        case 'D':
          type = Type::kF64;
          break;
        case 'H':
          type = Type::kF16;
          break;
        case 'T':
          type = Type::kBF16;
          break;
        case 'U':
          type = Type::kU8;
          break;
        case 'C':
          type = Type::kComplexF32;
          break;
        case 'Z':
          type = Type::kComplexF64;
          break;
        default:
          ADD_FAILURE() << name;
      }
    }
    EXPECT_EQ(row.type, type) << name;
  }
}

constexpr std::string_view kNotCovered[] = {
#define TS_NOT_COVERED(library, symbol, reason) #symbol,
#include "operations/not_covered.def"
};

// Functions that the toolkit's headers of a library declare, without the suffix of wider integers; nothing if it lacks one of them.
std::set<std::string, std::less<>> declared_by(const std::vector<const char*>& headers) {
  const std::regex pattern(R"(CU(?:BLAS|DNN)WINAPI\s+(cu(?:blas|dnn)\w+)\s*\()");
  std::set<std::string, std::less<>> declared;
  for (const char* name : headers) {
    std::ifstream header(std::string(TESSERA_CUDA_ROOT "/include/") + name);
    if (!header) return {};
    const std::string text{std::istreambuf_iterator<char>(header), {}};
    for (std::sregex_iterator it(text.begin(), text.end(), pattern), end; it != end; ++it) {
      std::string symbol = (*it)[1];
      if (symbol.ends_with("_64")) symbol.resize(symbol.size() - 3);
      declared.insert(symbol);
    }
  }
  return declared;
}

// Both lists against the toolkit that this is built with: nothing missing, nothing that does not exist.
TEST(Catalogue, KnowsEveryFunctionOfTheHeaders) {
  const struct {
    const char* prefix;  // names of cuBLASLt begin like cuBLAS's
    std::vector<const char*> headers;
  } libraries[] = {{"cublas", {"cublas_api.h", "cublasLt.h"}},
                   {"cudnn", {"cudnn_graph.h", "cudnn_ops.h", "cudnn_cnn.h", "cudnn_adv.h"}}};
  for (const auto& [prefix, headers] : libraries) {
    const auto declared = declared_by(headers);
    if (declared.empty()) continue;  // not in this toolkit
    for (const std::string& symbol : declared) {
      const bool is_left_out = std::ranges::find(kNotCovered, symbol) != std::end(kNotCovered);
      EXPECT_NE(find_entry(symbol) != nullptr, is_left_out) << symbol;
    }
    for (const EntryRow& row : entry_rows()) {
      if (row.symbol.starts_with(prefix)) {
        EXPECT_TRUE(declared.contains(row.symbol)) << row.symbol;
      }
    }
    for (const std::string_view symbol : kNotCovered) {
      if (symbol.starts_with(prefix)) {
        EXPECT_TRUE(declared.contains(symbol)) << symbol;
      }
    }
  }
  EXPECT_TRUE(std::ranges::is_sorted(kNotCovered));
}

TEST(Catalogue, EntriesHaveTheirNames) {
  EXPECT_EQ(name_of(Entry::cublasSgemm_v2), "cublasSgemm_v2");
  EXPECT_EQ(kind_of(Entry::cublasZgemmBatched).form, Form::kPointers);
  EXPECT_EQ(&row_of(Entry(kEntries - 1)), &entry_rows().back());
}

TEST(Catalogue, ShapesAsText) {
  char buffer[kShapeTextBytes];
  const auto text = [&](Entry entry, const Shape& shape) { return shape_text(entry, shape, buffer); };
  const Shape one{.dims = {64, 32, 16}, .n_dims = 3};
  EXPECT_EQ(text(Entry::cublasSgemm_v2, one), "64x32x16");
  EXPECT_EQ(text(Entry::cublasSgemmBatched, {.dims = {64, 32, 16}, .count = 8, .n_dims = 3}), "64x32x16 * 8");
  EXPECT_EQ(text(Entry::cublasSgemmBatched, {.dims = {0, 1, 2}, .count = 0, .n_dims = 3}), "0x1x2 * 0");
  EXPECT_EQ(text(Entry::cublasSgemmGroupedBatched, {.count = 3}), "3 groups");
  // The longest there can be fits, and no buffer is overrun.
  Shape longest{.count = std::numeric_limits<int64_t>::min(), .n_dims = 99};
  for (int64_t& dim : longest.dims) dim = std::numeric_limits<int64_t>::min();
  const std::string whole(text(Entry::cublasSgemm_v2, longest));
  EXPECT_TRUE(whole.ends_with("x-9223372036854775808 * -9223372036854775808"));
  for (size_t size = 0; size <= whole.size(); ++size)
    EXPECT_EQ(shape_text(Entry::cublasSgemm_v2, longest, std::span(buffer, size)), whole.substr(0, size));
}

}  // namespace
}  // namespace tessera::operations
