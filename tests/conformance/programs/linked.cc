// A program linked with -lcuda. Also: errno survives the first driver call, which opens the driver.
#include <cerrno>

#include "tests/conformance/programs/work.h"

int main() {
  errno = 123;
  SAY(cuInit(0));
  std::printf("errno %d\n", errno);
  Work w = open_work();
  do_work(w);
  SAY(cuStreamDestroy(w.stream));
  SAY(cuDevicePrimaryCtxRelease(0));
}
