// softgpu_algorithms [name...]: runs the algorithms named, or all, and prints those that passed.
#include <cstring>

#include "tests/unit/softgpu_algorithms/checks.h"

int main(int argc, char** argv) {
  int ran = 0;
  for (const auto& list : {own_algorithms(), group_algorithms(), library_algorithms()})
    for (const Algorithm& a : list) {
      bool wanted = argc < 2;
      for (int i = 1; i < argc; ++i) wanted = wanted || std::strcmp(argv[i], a.name) == 0;
      if (!wanted) continue;
      std::printf("%s\n", a.name);
      std::fflush(stdout);
      a.run();
      ++ran;
    }
  if (ran == 0) fail("no such algorithm");
  std::printf("%d passed\n", ran);
}
