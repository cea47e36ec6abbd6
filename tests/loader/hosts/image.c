/* Loads an image that lies on the heap, given as a pointer without length. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern int cuInit(unsigned);
extern int cuDevicePrimaryCtxRetain(void**, int);
extern int cuCtxSetCurrent(void*);
extern int cuModuleLoadData(void**, const void*);

int main(void) {
  char* text =
      strdup(".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry nothing() {\n  ret;\n}\n");
  void *context = NULL, *module = NULL;
  const int started = cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context);
  printf("started %d loaded %d\n", started, text ? cuModuleLoadData(&module, text) : -1);
  free(text);
  return 0;
}
