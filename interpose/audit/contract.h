// The contract between libtessera_audit.so and libtessera.so. The audit library lives in a namespace of its own and is linked with
// nothing: it finds this object by name among what libtessera.so exports. All-zero words are a valid state, and so is an
// audit library that is not there. (Of libtessera_ops.so it calls one function, operations/hook.h.)
//
// Written in the program's threads, read in any; no lock. The loader's own lock is often held by the reader.
#pragma once

#include <cstdint>

struct link_map;

namespace tessera::audit {

constexpr uint32_t kContractVersion = 3;  // other versions leave each other alone
constexpr uint32_t kPathBytes = 4096;     // PATH_MAX, the zero at the end included

enum OpenedState : uint32_t { kNoneOpened, kPathComing, kPathThere };

// A function of NVML (libnvidia-ml.so) in whose place who looks it up gets ours.
struct ManagementHook {
  const char* name;
  void* function;  // null: there is none
};

#define TS_MANAGEMENT(name, parameters) +1
constexpr uint32_t kManagementHooks = 0
#include "interpose/audit/management.def"
    ;

// Exported by libtessera.so as tessera_audit_driver.
struct DriverSide {
  uint32_t version;
  // 1: lookups in other copies of the driver lead here. Written by the audit library once, before main().
  uint32_t active;
  // 1: somebody has got functions of a driver that is not ours, past the audit library. Written by it.
  uint32_t passed_by;
  // 1: libtessera.so has looked for the driver: what it writes is there. Written by it (release), after the rest.
  uint32_t settled;
  // 1: TESSERA_DRIVER names the driver: whichever the program opens, that one is meant. Written by libtessera.so.
  uint32_t chosen_by_user;
  // Thread pointer of the thread that opens the driver and looks its functions up: these lookups are ours. Else 0.
  uint64_t opening_thread;
  // The driver that libtessera.so opened; null if there is none. Written by it.
  const link_map* driver;
  // The file that the program opened as driver before libtessera.so opened one: it is to be ours, too. Written by the
  // audit library, once; `opened` is one of the states below, its last one stored after the path (release).
  uint32_t opened;
  char opened_path[kPathBytes];
  ManagementHook management_hooks[kManagementHooks];  // constant
  // NVML, where the hooks find the functions that they stand for. Written by the audit library (release) before it hands a
  // hook out.
  const link_map* management;
};

}  // namespace tessera::audit

extern "C" __attribute__((visibility("default"))) tessera::audit::DriverSide tessera_audit_driver;
