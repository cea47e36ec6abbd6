#include "base/printable.h"

#include <gtest/gtest.h>

namespace tessera::base {
namespace {

TEST(Printable, OnlyPrintableAsciiStaysAsItIs) {
  EXPECT_EQ(printable("train.py --lr 1e-3 ~"), "train.py --lr 1e-3 ~");
  EXPECT_EQ(printable("\x1b]0;mine\x07\r\n\t\x7f"), "\\x1b]0;mine\\x07\\x0d\\x0a\\x09\\x7f");
  EXPECT_EQ(printable("\xc2\x9b"
                      "2J"),
            "\\xc2\\x9b2J");  // the control sequence introducer of 8-bit terminals
  EXPECT_EQ(printable(std::string_view("a\0b", 3)), "a\\x00b");
  for (int byte = 0; byte < 256; ++byte) {
    const std::string once = printable(std::string(1, char(byte)));
    EXPECT_TRUE(is_printable(once)) << byte;
    EXPECT_EQ(printable(once), once) << byte;
  }
}

}  // namespace
}  // namespace tessera::base
