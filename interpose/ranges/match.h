// Does a pattern mean this range? Pure.
#pragma once

#include <string_view>

namespace tessera::ranges {

struct Range {
  std::string_view domain, name, category;  // "": none
};

// `*` stands for any text, empty text included.
bool matches(std::string_view pattern, std::string_view text);

// "category:NAME" means the category; anything else the name, or "domain/name".
bool means(std::string_view pattern, const Range& range);

}  // namespace tessera::ranges
