/* An object with every sort of name that base/exports.h meets. Linked once with each kind of hash table. */
__attribute__((visibility("default"))) int plain(void) {
  return 1;
}

static int chosen(void) {
  return 2;
}
static int (*choose(void))(void) {
  return chosen;
}
__attribute__((visibility("default"), ifunc("choose"))) int indirect(void);

__attribute__((visibility("default"))) int older(void) {
  return 3;
}
__attribute__((visibility("default"))) int newer(void) {
  return 4;
}
__asm__(".symver older, versioned@OLD");
__asm__(".symver newer, versioned@@NEW");

__attribute__((visibility("default"))) int gone(void) {
  return 5;
}
__asm__(".symver gone, withdrawn@OLD");

/* Defined elsewhere: not what this object exports. */
extern int puts(const char*);
__attribute__((visibility("default"))) int calls_another(void) {
  return puts("");
}
