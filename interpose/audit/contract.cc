#include "interpose/audit/contract.h"

extern "C" {
// Defined in interpose/hooks; null in the pass-through build.
#define TS_MANAGEMENT(name, parameters) \
  __attribute__((weak, visibility("hidden"))) int tessera_##name parameters noexcept;
#include "interpose/audit/management.def"

tessera::audit::DriverSide tessera_audit_driver{.version = tessera::audit::kContractVersion,
                                                .management_hooks = {
#define TS_MANAGEMENT(name, parameters) {#name, reinterpret_cast<void*>(&tessera_##name)},
#include "interpose/audit/management.def"
                                                }};
}
