// Helpers of this folder: errors, words of attributes, and an instruction at a place. Untrusted bytes; any thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "kernels/image/attributes.h"
#include "kernels/image/internal.h"
#include "kernels/sass/instruction.h"

namespace tessera::image {

inline base::Error bad(std::string what) {
  return base::error(base::Code::kInvalid, "prologue: " + std::move(what));
}
inline base::Error refused(std::string what) {
  return base::error(base::Code::kUnsupported, "prologue: " + std::move(what));
}

inline std::vector<uint32_t> words(Bytes payload) {
  std::vector<uint32_t> all(payload.size() / 4);
  for (size_t i = 0; i < all.size(); ++i) all[i] = load<uint32_t>(payload, 4 * i);
  return all;
}

// An attribute as it stands in its section.
inline std::vector<uint8_t> record(const Attributes& a) {
  std::vector<uint8_t> out = {a.form, a.code, uint8_t(a.value), uint8_t(a.value >> 8)};
  out.insert(out.end(), a.payload.begin(), a.payload.end());
  return out;
}

// Sections that only debuggers read: call frames, and which line of the source or of the PTX an instruction comes from. They are
// kept. They name places in the code by relocations, which move with it; all else in them counts from such a place.
inline constexpr std::string_view kDebugging[] = {".debug_frame", ".debug_line", ".debug_str",
                                                  ".nv_debug_line_sass", ".nv_debug_ptx_txt"};
inline bool is_kept_debugging(std::string_view section) {
  return std::find(std::begin(kDebugging), std::end(kDebugging), section) != std::end(kDebugging);
}
// The relocations of one.
inline bool relocates_debugging(std::string_view section) {
  constexpr std::string_view kPrefix = ".rela";
  return section.starts_with(kPrefix) && is_kept_debugging(section.substr(kPrefix.size()));
}

// No number in it could be that of a byte where an instruction begins, but for the first.
inline bool names_no_place(const Attributes& a) {
  const auto place = [](uint32_t word) { return word != 0 && word % sass::kInstructionBytes == 0; };
  const std::vector<uint32_t> all = words(a.payload);
  return a.payload.size() % 4 == 0 && (a.form == 4 || !place(a.value)) &&
         std::none_of(all.begin(), all.end(), place);
}

// Nothing: one that kernels/sass does not know.
inline std::optional<sass::Instruction> instruction_at(Bytes code, uint64_t at, unsigned sm) {
  return sass::decode(load<uint64_t>(code, at), load<uint64_t>(code, at + 8), sm);
}

// The compute capability of linked machine code.
inline base::Result<unsigned> target_of(Bytes cubin) {
  auto entries = list(cubin);
  if (!entries.ok()) return entries.error();
  if (entries->size() != 1 || (*entries)[0].kind != EntryKind::kCubin || (*entries)[0].relocatable)
    return bad("not linked machine code");
  return (*entries)[0].sm;
}

}  // namespace tessera::image
