#include "operations/catalogue.h"

#include <algorithm>
#include <array>

namespace tessera::operations {
namespace {

constexpr auto kRows = std::to_array<EntryRow>({
#define TS_OPERATION(library, symbol, family, form, type) {#symbol, Library::library, Type::type},
#include "operations/entries.def"
});
static_assert(std::ranges::is_sorted(kRows, {}, &EntryRow::symbol));
static_assert(kRows.size() == kEntries);

// Text into a buffer of fixed size; what does not fit is left out.
class Writer {
 public:
  explicit Writer(std::span<char> buffer) : buffer_(buffer) {}
  void text(std::string_view text) {
    const size_t n = std::min(text.size(), buffer_.size() - size_);
    std::copy_n(text.begin(), n, buffer_.begin() + static_cast<ptrdiff_t>(size_));
    size_ += n;
  }
  void number(int64_t number) {
    std::array<char, 20> digits{};
    size_t at = digits.size();
    auto left = static_cast<uint64_t>(number);
    if (number < 0) {
      text("-");
      left = 0 - left;
    }
    do digits[--at] = static_cast<char>('0' + left % 10);
    while ((left /= 10) != 0);
    text({&digits[at], digits.size() - at});
  }
  void joined(std::span<const int64_t> numbers) {
    for (size_t i = 0; i < numbers.size(); ++i) {
      if (i != 0) text("x");
      number(numbers[i]);
    }
  }
  std::string_view written() const { return {buffer_.data(), size_}; }

 private:
  std::span<char> buffer_;
  size_t size_ = 0;
};

}  // namespace

std::span<const EntryRow> entry_rows() {
  return kRows;
}

const EntryRow& row_of(Entry entry) {
  return kRows[static_cast<size_t>(entry)];
}

std::string_view name_of(Entry entry) {
  return row_of(entry).symbol;
}

const EntryRow* find_entry(std::string_view symbol) {
  if (symbol.ends_with("_64")) symbol.remove_suffix(3);
  const auto* row = std::ranges::lower_bound(kRows, symbol, {}, &EntryRow::symbol);
  return row != kRows.end() && row->symbol == symbol ? row : nullptr;
}

std::string_view shape_text(Entry entry, const Shape& shape, std::span<char> buffer) {
  Writer out(buffer);
  if (kind_of(entry).form == Form::kGrouped) {
    out.number(shape.count);
    out.text(" groups");
    return out.written();
  }
  out.joined(std::span(shape.dims).first(std::min(shape.n_dims, kMostDims)));
  if (shape.count != 1) {
    out.text(" * ");
    out.number(shape.count);
  }
  return out.written();
}

}  // namespace tessera::operations
