// The start of an executable, in place of the compiler's crt1.o. That of glibc 2.34 and newer leaves the program's
// constructors to libc, which runs them only since then. Older glibcs call `initialise`, which they are given; so do
// newer ones that are asked for the old version of __libc_start_main.
#include <stddef.h>

typedef void constructor(int argc, char** argv, char** environment);

// Made by the linker, of this executable.
extern constructor* const __preinit_array_start[] __attribute__((visibility("hidden")));
extern constructor* const __preinit_array_end[] __attribute__((visibility("hidden")));
extern constructor* const __init_array_start[] __attribute__((visibility("hidden")));
extern constructor* const __init_array_end[] __attribute__((visibility("hidden")));
extern void _init(void) __attribute__((visibility("hidden")));
extern int main(int argc, char** argv, char** environment);
extern int __libc_start_main(int (*main_function)(int, char**, char**), int argc, char** argv, constructor* initialise,
                             void (*finish)(void), void (*finish_loader)(void), void* stack_end);

static void run_all(constructor* const* from, constructor* const* to, int argc, char** argv, char** environment) {
  for (; from != to; ++from) (*from)(argc, argv, environment);
}

static void initialise(int argc, char** argv, char** environment) {
  run_all(__preinit_array_start, __preinit_array_end, argc, argv, environment);
  _init();
  run_all(__init_array_start, __init_array_end, argc, argv, environment);
}

// The kernel's stack: argc, argv[0] ..., NULL. Destructors are run by the loader: finish_loader.
__attribute__((noreturn, used)) static void start_c(long* stack, void (*finish_loader)(void)) {
  __libc_start_main(main, (int)stack[0], (char**)(stack + 1), initialise, NULL, finish_loader, stack);
  __builtin_trap();
}

#ifdef __x86_64__
__asm__(
    ".text\n.globl _start\n.type _start, @function\n"
    "_start:\n"
    "  .cfi_startproc\n  .cfi_undefined rip\n"
    "  endbr64\n"
    "  xor %ebp, %ebp\n"      // the outermost frame
    "  mov %rsp, %rdi\n"      // the kernel's stack
    "  mov %rdx, %rsi\n"      // the loader's function for the end
    "  and $-16, %rsp\n"
    "  call start_c\n"
    "  hlt\n"
    "  .cfi_endproc\n"
    ".size _start, .-_start\n");
#else
__asm__(
    ".text\n.globl _start\n.type _start, @function\n"
    "_start:\n"
    "  .cfi_startproc\n  .cfi_undefined x30\n"
    "  mov x29, #0\n"  // the outermost frame
    "  mov x30, #0\n"
    "  mov x1, x0\n"  // the loader's function for the end
    "  mov x0, sp\n"  // the kernel's stack
    "  bl start_c\n"
    "  .cfi_endproc\n"
    ".size _start, .-_start\n");
#endif
