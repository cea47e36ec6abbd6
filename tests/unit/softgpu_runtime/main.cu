// usage: softgpu_runtime_checks CASE | --list
#include <cstring>

#include "checks.h"

int main(int argc, char** argv) {
  using namespace checks;
  const Case* const lists[] = {kMemoryCases, kStreamCases, kGraphCases, kKernelCases};
  if (argc != 2) return std::fprintf(stderr, "usage: %s CASE | --list\n", argv[0]), 2;
  for (const Case* list : lists) {
    for (const Case* c = list; c->name; ++c) {
      if (!std::strcmp(argv[1], "--list")) std::puts(c->name);
      if (std::strcmp(argv[1], c->name)) continue;
      c->run();
      std::printf("%s: %d failures\n", c->name, g_failures);
      return g_failures == 0 ? 0 : 1;
    }
  }
  if (!std::strcmp(argv[1], "--list")) return 0;
  std::fprintf(stderr, "no such case: %s\n", argv[1]);
  return 2;
}
