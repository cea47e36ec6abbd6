// Asks the kernel to run the calling thread soon after it wakes although the machine is busy: a woken task
// with a shorter slice preempts one with the usual 3 ms (Linux 6.12 and newer, no privilege needed; without
// effect elsewhere). For threads that others wait for and that use little processor time. Any thread, for
// itself.
#pragma once

#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace tessera::base {

inline void ask_for_slice(uint64_t slice_ns) {
  struct {  // struct sched_attr of sched_setattr(2), first version; glibc 2.36 does not declare it
    uint32_t size = sizeof(*this), policy = SCHED_OTHER;
    uint64_t flags = 0;
    int32_t nice = getpriority(PRIO_PROCESS, 0);
    uint32_t priority = 0;
    uint64_t runtime_ns = 0, deadline_ns = 0, period_ns = 0;
  } attributes;
  static_assert(sizeof attributes == 48);
  attributes.runtime_ns = slice_ns;
  (void)syscall(SYS_sched_setattr, 0, &attributes, 0);
}

}  // namespace tessera::base
