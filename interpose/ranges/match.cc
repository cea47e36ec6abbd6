#include "interpose/ranges/match.h"

namespace tessera::ranges {
namespace {

constexpr std::string_view kCategory = "category:";

// Texts in a row, as one.
struct Text {
  std::string_view parts[3];
  size_t size() const { return parts[0].size() + parts[1].size() + parts[2].size(); }
  char operator[](size_t i) const {
    for (const std::string_view part : parts) {
      if (i < part.size()) return part[i];
      i -= part.size();
    }
    return 0;
  }
};

bool glob(std::string_view pattern, const Text& text) {
  size_t p = 0, t = 0, star = pattern.npos, star_text = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++, star_text = t;
    } else if (p < pattern.size() && pattern[p] == text[t]) {
      p++, t++;
    } else if (star != pattern.npos) {  // the latest star stands for one more
      p = star + 1, t = ++star_text;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') p++;
  return p == pattern.size();
}

}  // namespace

bool matches(std::string_view pattern, std::string_view text) {
  return glob(pattern, {{text}});
}

bool means(std::string_view pattern, const Range& range) {
  if (pattern.starts_with(kCategory))
    return !range.category.empty() && matches(pattern.substr(kCategory.size()), range.category);
  return matches(pattern, range.name) ||
         (!range.domain.empty() && glob(pattern, {{range.domain, "/", range.name}}));
}

}  // namespace tessera::ranges
