/* Says whether the shim is in this process at all; linked statically and run with set-user-id by the checker.
 */
#include <stdio.h>
#include <string.h>
int main(void) {
  FILE* maps = fopen("/proc/self/maps", "r");
  char line[4352];
  int found = 0;
  while (maps != NULL && fgets(line, sizeof line, maps) != NULL) found |= strstr(line, "libtessera") != NULL;
  puts(found ? "shim" : "nobody");
  return 0;
}
