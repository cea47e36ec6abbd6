// A text between its separators: an empty text is one empty piece, and an empty last piece counts. Nothing is quoted. Allocates.
#pragma once

#include <string_view>
#include <vector>

namespace tessera::base {

// The pieces are of `text`, which must outlive them. `Piece` is made of a view.
template <class Piece = std::string_view>
std::vector<Piece> split(std::string_view text, char separator) {
  std::vector<Piece> pieces;
  for (;;) {
    const size_t end = text.find(separator);
    pieces.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) return pieces;
    text.remove_prefix(end + 1);
  }
}

}  // namespace tessera::base
