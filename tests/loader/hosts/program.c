/* Opens the driver by the name it is given, calls it, and says so. Without a name it only says hello.
   usage: program [NAME] */
#include <dlfcn.h>
#include <stdio.h>

int main(int count_of_words, char** words) {
  if (count_of_words > 1) {
    void* driver = dlopen(words[1], RTLD_NOW);
    int (*init)(unsigned) = driver ? (int (*)(unsigned))dlsym(driver, "cuInit") : NULL;
    printf("init %d\n", init ? init(0) : -1);
  }
  puts("hello");
  return 0;
}
