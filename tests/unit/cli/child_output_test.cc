// Children that write, read, fail and cannot start.
#include "cli/run/child_output.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace tessera::cli {
namespace {

TEST(ChildOutput, IsWholeHoweverLongItIs) {
  const ChildOutput child = output_of_child(
      [] { execl("/bin/sh", "sh", "-c", "for i in $(seq 20000); do echo 0123456789; done", nullptr); });
  EXPECT_TRUE(child.ended_well());
  EXPECT_EQ(child.text.size(), 220'000u);
}

TEST(ChildOutput, OfAChildThatReads) {
  const std::string input = "get_server_list\n";
  EXPECT_EQ(output_of_child([] { execl("/bin/cat", "cat", nullptr); }, &input).text, input);
  const ChildOutput deaf = output_of_child([] { _exit(3); }, &input);  // no signal ends us
  EXPECT_EQ(WEXITSTATUS(deaf.status), 3);
}

TEST(ChildOutput, WhatDoesNotStartOrEndsBadlyIsNotWell) {
  const ChildOutput absent = output_of_child([] { execl("/absent", "absent", nullptr); });
  EXPECT_FALSE(absent.ended_well());
  EXPECT_EQ(WEXITSTATUS(absent.status), 127);
  const ChildOutput killed =
      output_of_child([] { execl("/bin/sh", "sh", "-c", "echo a; kill -9 $$", nullptr); });
  EXPECT_FALSE(killed.ended_well());
  EXPECT_EQ(killed.text, "a\n");
}

}  // namespace
}  // namespace tessera::cli
