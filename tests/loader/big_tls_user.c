/* Starts with a library that has much thread-local storage. */
#include <stdio.h>
char* big_tls(void);
int main(void) {
  big_tls()[4095] = 1;
  return puts("started") < 0;
}
