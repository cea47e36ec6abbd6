// Facts and instructions in which processors differ, as far as C++ can name them. The library's own assembly is in interpose/arch. Any thread; no
// state; nothing here calls libc, because the audit library has none.
#pragma once

#include <elf.h>
#include <sys/syscall.h>

#include <cstdint>

#if defined(__x86_64__)
#include <cpuid.h>
#elif !defined(__aarch64__)
#error "Tessera knows x86-64 and aarch64: describe this processor in base/machine.h and interpose/arch"
#endif

namespace tessera::base {

#if defined(__x86_64__)

inline constexpr char kMachine[] = "x86-64";
inline constexpr char kLibraryFolder[] =
    "x86_64-linux-gnu";  // in /lib and /usr/lib, where the system has several machines'
inline constexpr uint16_t kElfMachine = EM_X86_64;
inline constexpr uint32_t kLoaderCacheFlags = 0x0303;  // of an entry of ld.so.cache: ELF libc6, x86-64
// Relocations by which the loader writes an address into a word.
inline constexpr uint32_t kRelocatesCall = R_X86_64_JUMP_SLOT, kRelocatesAddress = R_X86_64_GLOB_DAT,
                          kRelocatesWord = R_X86_64_64;

// In a loop that watches a word.
inline void cpu_relax() {
  __builtin_ia32_pause();
}

// The counter by which clocks go: at one rate, and the same on every CPU, if it is steady.
inline uint64_t counter_ticks() {
  return __builtin_ia32_rdtsc();
}
inline bool counter_is_steady() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(0x80000007, &a, &b, &c, &d) && (d & (1u << 8)) != 0;
}

// For counters that the calling thread alone writes: nothing comes between, not even a signal handler. One instruction
// without a lock prefix; compilers make three of an atomic load and store.
inline void add_own(uint64_t& counter, uint64_t n) {
  asm volatile("addq %1, %0" : "+m"(counter) : "er"(n) : "cc");
}
// One instruction adds here, too, with memory order release: who sees the sum sees all that the thread did before.
inline void add_own_release(uint64_t& counter, uint64_t n) {
  asm volatile("addq %1, %0" : "+m"(counter) : "er"(n) : "cc", "memory");
}
// To one of 128 bits, of which the lower half is first.
inline void add_own(uint64_t (&counter)[2], uint64_t n) {
  asm("addq %2, %0\n\tadcq $0, %1" : "+m"(counter[0]), "+m"(counter[1]) : "r"(n) : "cc");
}

inline uintptr_t stack_pointer() {
  uintptr_t sp;
  asm("mov %%rsp, %0" : "=r"(sp));
  return sp;
}

// Asks an IFUNC's chooser.
inline void* chosen_by(uintptr_t chooser) {
  return reinterpret_cast<void* (*)()>(chooser)();
}

inline long system_call(long number, long a, const void* b, void* c, long d) {
  long result;
  register long fourth asm("r10") = d;
  asm volatile("syscall"
               : "=a"(result)
               : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth)
               : "rcx", "r11", "memory");
  return result;
}

#else

inline constexpr char kMachine[] = "aarch64";
inline constexpr char kLibraryFolder[] = "aarch64-linux-gnu";
inline constexpr uint16_t kElfMachine = EM_AARCH64;
inline constexpr uint32_t kLoaderCacheFlags = 0x0a03;  // ELF libc6, 64-bit Arm
inline constexpr uint32_t kRelocatesCall = R_AARCH64_JUMP_SLOT, kRelocatesAddress = R_AARCH64_GLOB_DAT,
                          kRelocatesWord = R_AARCH64_ABS64;

inline void cpu_relax() {
  asm volatile("yield");
}

// The architecture's own promise: one rate for all CPUs. It may be read a little early, as rdtsc may.
inline uint64_t counter_ticks() {
  uint64_t ticks;
  asm volatile("mrs %0, cntvct_el0" : "=r"(ticks));
  return ticks;
}
inline bool counter_is_steady() {
  return true;
}

// One instruction, too (armv8.1, cmake/tessera.cmake): here no plain addition to memory exists.
inline void add_own(uint64_t& counter, uint64_t n) {
  __atomic_fetch_add(&counter, n, __ATOMIC_RELAXED);
}
inline void add_own_release(uint64_t& counter, uint64_t n) {
  __atomic_fetch_add(&counter, n, __ATOMIC_RELEASE);
}
inline void add_own(uint64_t (&counter)[2], uint64_t n) {
  const uint64_t before = __atomic_fetch_add(&counter[0], n, __ATOMIC_RELAXED);
  if (before + n < before) add_own(counter[1], 1);
}

inline uintptr_t stack_pointer() {
  uintptr_t sp;
  asm("mov %0, sp" : "=r"(sp));
  return sp;
}

// The chooser is told of no feature of the processor, so it takes the function for any.
inline void* chosen_by(uintptr_t chooser) {
  return reinterpret_cast<void* (*)(uint64_t, const void*)>(chooser)(0, nullptr);
}

inline long system_call(long number, long a, const void* b, void* c, long d) {
  register long which asm("x8") = number;
  register long result asm("x0") = a;
  register const void* second asm("x1") = b;
  register void* third asm("x2") = c;
  register long fourth asm("x3") = d;
  asm volatile("svc 0" : "+r"(result) : "r"(which), "r"(second), "r"(third), "r"(fourth) : "memory");
  return result;
}

#endif

}  // namespace tessera::base
