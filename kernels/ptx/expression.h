// Constant expressions of PTX ISA 4.6: literals and C operators over 64-bit integers. Used by parser.cc.
#pragma once

#include <cstdint>

#include "kernels/ptx/cursor.h"

namespace tessera::ptx {

struct Constant {
  uint64_t bits = 0;
  bool is_unsigned = false;
  bool known = false;  // false: well-formed, but holds a symbol or a float that is not evaluated here
};

// Takes one expression from the cursor; false after cursor.fail().
bool constant_expression(Cursor& cursor, Constant* value);

// The value of an integer token (0x, 0b, octal, decimal, with optional U). False if it exceeds 64 bits.
bool integer_value(std::string_view text, Constant* value);

// IEEE bits of a float token. False if malformed.
bool float_value(std::string_view text, uint64_t* bits, bool* is_f64);

}  // namespace tessera::ptx
