#include "operations/catalogue.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <limits>
#include <regex>
#include <set>
#include <string>

namespace tessera::operations {
namespace {

TEST(Catalogue, FindsNamesWithBothWidthsOfIntegers) {
  for (const char* name : {"cublasSgemm_v2", "cublasSgemm_v2_64"}) {
    const EntryRow* row = find_entry(name);
    ASSERT_NE(row, nullptr) << name;
    EXPECT_EQ(row->symbol, "cublasSgemm_v2");
    EXPECT_EQ(row->form, Form::kOne);
    EXPECT_EQ(row->type, Type::kF32);
  }
  for (const char* name : {"", "_64", "cublasSgemm", "cublasSgemv_v2", "cublasZgemm_v2_64_64", "zzz"}) {
    EXPECT_EQ(find_entry(name), nullptr) << name;
  }
}

// Form and type of every row, told by its name alone.
TEST(Catalogue, RowsAreWhatTheirNamesSay) {
  for (const EntryRow& row : entry_rows()) {
    const std::string name(row.symbol);
    const auto says = [&](const char* word) { return name.find(word) != std::string::npos; };
    Form form = Form::kOne;
    if (says("StridedBatched"))
      form = Form::kStrided;
    else if (says("GroupedBatched"))
      form = Form::kGrouped;
    else if (says("Batched"))
      form = Form::kPointers;
    EXPECT_EQ(row.form, form) << name;
    Type type = Type::kFromArguments;
    if (!says("Ex")) {
      const char letter = name.at(6);
      if (letter == 'S') type = Type::kF32;
      if (letter == 'D') type = Type::kF64;
      if (letter == 'H') type = Type::kF16;
      if (letter == 'U') type = Type::kU8;
      if (letter == 'C') type = Type::kComplexF32;
      if (letter == 'Z') type = Type::kComplexF64;
      EXPECT_NE(type, Type::kFromArguments) << name;
    }
    EXPECT_EQ(row.type, type) << name;
  }
}

// The table against the toolkit that this is built with: nothing missing, nothing that does not exist.
TEST(Catalogue, TableHasEveryProductOfTheHeader) {
  std::ifstream header(TESSERA_CUDA_ROOT "/include/cublas_api.h");
  if (!header) GTEST_SKIP() << "this toolkit has no cublas_api.h";
  const std::string text{std::istreambuf_iterator<char>(header), {}};
  const std::regex declaration(R"(CUBLASWINAPI\s+(cublas\w*[gG]emm\w*)\s*\()");
  std::set<std::string> declared;
  for (std::sregex_iterator it(text.begin(), text.end(), declaration), end; it != end; ++it) {
    declared.insert((*it)[1]);
    EXPECT_NE(find_entry((*it)[1].str()), nullptr) << (*it)[1];
  }
  EXPECT_GE(declared.size(), entry_rows().size());
  for (const EntryRow& row : entry_rows()) {
    EXPECT_TRUE(declared.contains(std::string(row.symbol))) << row.symbol;
    const bool has_wide_form = row.type != Type::kU8;
    EXPECT_EQ(declared.contains(std::string(row.symbol) + "_64"), has_wide_form) << row.symbol;
  }
}

TEST(Catalogue, EntriesHaveTheirNames) {
  EXPECT_EQ(name_of(Entry::cublasSgemm_v2), "cublasSgemm_v2");
  EXPECT_EQ(row_of(Entry::cublasZgemmBatched).form, Form::kPointers);
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
