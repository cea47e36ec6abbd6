/* The first call of the driver comes before the C library has begun: from .preinit_array, or, with TS_IFUNC, from the resolver
   of an IFUNC. Says what was answered then, and what is answered in main(). */
#include <stdio.h>

extern int cuInit(unsigned);
static int early = -1;

#ifdef TS_IFUNC
static int nothing(void) { return 0; }
static int (*resolve(void))(void) {
  early = cuInit(0);
  return nothing;
}
int resolved(void) __attribute__((ifunc("resolve")));
#else
static int resolved(void) { return 0; }
static void first(int count, char** words, char** environment) {
  (void)count, (void)words, (void)environment;
  early = cuInit(0);
}
__attribute__((section(".preinit_array"), used)) static void (*preinit)(int, char**, char**) = first;
#endif

int main(void) {
  const int late = cuInit(0) + resolved();
  printf("early %d late %d\n", early, late);
  return 0;
}
