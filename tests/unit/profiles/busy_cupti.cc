// Stands for libcupti.so.13 in a process where another profiler subscribed first: it has every entry point
// that the collector looks up, and each answers so.
#include "profiles/collector/cupti_api.h"

extern "C" __attribute__((used, visibility("default"))) int busy() {
  return CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
}

#define TS_ALIAS(name) asm(".weak " #name "\n.set " #name ", busy");  // recording_cupti.cc has some
TS_CUPTI_FUNCTIONS(TS_ALIAS)
