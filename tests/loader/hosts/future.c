/* Calls functions that only the driver knows: future NAME looks them up in that library; with TS_LINKED it is linked with them. */
#include <dlfcn.h>
#include <stdio.h>

typedef int (*Future)(double*, int, int, int, int, int, int, int, int, int, double);
int cuFutureCall(double*, int, int, int, int, int, int, int, int, int, double);
int cuFutureCall_ptsz(double*, int, int, int, int, int, int, int, int, int, double);

static double answer(Future call) {
  double sum = -1;
  const int status = call(&sum, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0.5);
  return status == 0 ? sum : status;
}

int main(int count, char** words) {
#ifdef TS_LINKED
  Future first = cuFutureCall, second = cuFutureCall_ptsz;
  (void)count, (void)words;
#else
  void* library = count > 1 ? dlopen(words[1], RTLD_NOW) : NULL;
  Future first = library ? (Future)dlsym(library, "cuFutureCall") : NULL;
  Future second = library ? (Future)dlsym(library, "cuFutureCall_ptsz") : NULL;
  if (!first || !second || dlsym(library, "cuFutureData")) return puts("not found") < 0;
#endif
  answer(second);
  printf("future %g\n", answer(first));
  printf("%g\n", answer(second));
  return 0;
}
