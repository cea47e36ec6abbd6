// softgpu_algorithms [name...]: runs the algorithms named, or all, and prints those that passed.
// softgpu_algorithms --again STEPS_FILE [name...]: those of the library on more numbers, again and again
// until SIGTERM; a byte is appended per round.
#include <csignal>
#include <cstring>

#include "tests/unit/softgpu_algorithms/checks.h"

namespace {

volatile std::sig_atomic_t g_stop = 0;

int run(int argc, char** argv, bool says) {
  int ran = 0;
  for (const auto& list : {own_algorithms(), group_algorithms(), library_algorithms()})
    for (const Algorithm& a : list) {
      bool wanted = argc == 0;
      for (int i = 0; i < argc; ++i) wanted = wanted || std::strcmp(argv[i], a.name) == 0;
      if (!wanted) continue;
      if (says) std::printf("%s\n", a.name);
      std::fflush(stdout);
      a.run();
      ++ran;
    }
  if (ran == 0) fail("no such algorithm");
  return ran;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3 || std::strcmp(argv[1], "--again") != 0) {
    std::printf("%d passed\n", run(argc - 1, argv + 1, true));
    return 0;
  }
  std::signal(SIGTERM, [](int) { g_stop = 1; });
  std::FILE* steps = std::fopen(argv[2], "w");
  if (!steps) fail(std::string(argv[2]) + " cannot be written");
  g_times = 8;
  while (!g_stop) {
    run(argc - 3, argv + 3, false);
    std::fputc('.', steps);
    std::fflush(steps);
  }
}
