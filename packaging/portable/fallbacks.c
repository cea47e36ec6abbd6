// Functions that old glibcs lack and that we, or libraries that we link, call. Each is made of functions that they
// have. They are hidden, so that each program and library has its own, also where libc has the real one.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

// 2.33: the inline functions of sys/stat.h became functions.
#ifdef __x86_64__
enum { kStatVersion = 1 };
#else
enum { kStatVersion = 0 };
#endif
extern int __xstat(int version, const char* path, struct stat* out);
extern int __lxstat(int version, const char* path, struct stat* out);
extern int __fxstat(int version, int fd, struct stat* out);
extern int __fxstatat(int version, int fd, const char* path, struct stat* out, int flags);
int stat(const char* restrict path, struct stat* restrict out) { return __xstat(kStatVersion, path, out); }
int lstat(const char* restrict path, struct stat* restrict out) { return __lxstat(kStatVersion, path, out); }
int fstat(int fd, struct stat* out) { return __fxstat(kStatVersion, fd, out); }
int fstatat(int fd, const char* restrict path, struct stat* restrict out, int flags) {
  return __fxstatat(kStatVersion, fd, path, out, flags);
}
// Both structures are the same where a file size has 64 bits.
_Static_assert(sizeof(struct stat) == sizeof(struct stat64), "");
int stat64(const char* restrict path, struct stat64* restrict out) { return stat(path, (struct stat*)out); }
int lstat64(const char* restrict path, struct stat64* restrict out) { return lstat(path, (struct stat*)out); }
int fstat64(int fd, struct stat64* out) { return fstat(fd, (struct stat*)out); }
int fstatat64(int fd, const char* restrict path, struct stat64* restrict out, int flags) {
  return fstatat(fd, path, (struct stat*)out, flags);
}

// 2.30.
pid_t gettid(void) { return (pid_t)syscall(SYS_gettid); }

// 2.27.
int memfd_create(const char* name, unsigned flags) { return (int)syscall(SYS_memfd_create, name, flags); }

// 2.34, of kernel 5.9.
int close_range(unsigned first, unsigned last, int flags) {
  const long result = syscall(SYS_close_range, first, last, flags);
  if (result == 0 || errno != ENOSYS || flags != 0) return (int)result;
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return -1;
  for (unsigned fd = first; fd <= last && fd < limit.rlim_cur; ++fd) close((int)fd);
  return 0;
}

// 2.32: whether libstdc++ may do without atomic instructions; it never has to.
char __libc_single_threaded = 0;

// 2.25 and 2.36, of std::random_device.
int getentropy(void* out, size_t bytes) { return syscall(SYS_getrandom, out, bytes, 0) == (long)bytes ? 0 : -1; }
uint32_t arc4random(void) {
  uint32_t value;
  if (getentropy(&value, sizeof value) != 0) abort();
  return value;
}

// 2.30: a wait until a moment of any clock. The older one knows the clock of the condition variable only, which is
// CLOCK_REALTIME in C++: if that is set forward the wait ends early, which a caller must expect, if back late.
int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                           const struct timespec* until) {
  const long kSecondNs = 1000000000;
  struct timespec now, real;
  if (clock_gettime(clock, &now) != 0 || clock_gettime(CLOCK_REALTIME, &real) != 0) return EINVAL;
  real.tv_sec += until->tv_sec - now.tv_sec;
  real.tv_nsec += until->tv_nsec - now.tv_nsec;
  if (real.tv_nsec < 0) real.tv_nsec += kSecondNs, --real.tv_sec;
  if (real.tv_nsec >= kSecondNs) real.tv_nsec -= kSecondNs, ++real.tv_sec;
  if (real.tv_sec < 0) real.tv_sec = real.tv_nsec = 0;
  return pthread_cond_timedwait(condition, mutex, &real);
}

// Part of what is linked, not of libc: the compiler's calls what musl does not have.
typedef void handler(void);
extern int __register_atfork(handler* prepare, handler* parent, handler* child, void* object) __attribute__((weak));
extern void* __dso_handle __attribute__((visibility("hidden")));
int pthread_atfork(handler* prepare, handler* parent, handler* child) {
  if (__register_atfork) return __register_atfork(prepare, parent, child, &__dso_handle);
  int (*of_libc)(handler*, handler*, handler*);
  *(void**)&of_libc = dlsym(RTLD_DEFAULT, "pthread_atfork");
  return of_libc ? of_libc(prepare, parent, child) : ENOSYS;
}

// 2.35: libgcc finds the tables for unwinding of the object that holds an address. Each object has a program header for
// them.
struct Search {
  uintptr_t address;
  struct dl_find_object* out;
};

static int holds(struct dl_phdr_info* info, size_t size, void* data) {
  (void)size;
  const struct Search* search = data;
  uintptr_t begin = UINTPTR_MAX, end = 0;
  void* tables = NULL;
  int inside = 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)* header = &info->dlpi_phdr[i];
    const uintptr_t at = info->dlpi_addr + header->p_vaddr;
    if (header->p_type == PT_GNU_EH_FRAME) tables = (void*)at;
    if (header->p_type != PT_LOAD) continue;
    if (at < begin) begin = at;
    if (at + header->p_memsz > end) end = at + header->p_memsz;
    inside |= search->address - at < header->p_memsz;
  }
  if (!inside || !tables) return inside;
  *search->out = (struct dl_find_object){.dlfo_map_start = (void*)begin, .dlfo_map_end = (void*)end, .dlfo_eh_frame = tables};
  return 2;
}

int _dl_find_object(void* address, struct dl_find_object* out) {
  struct Search search = {(uintptr_t)address, out};
  return dl_iterate_phdr(holds, &search) == 2 ? 0 : -1;
}
