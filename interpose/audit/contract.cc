#include "interpose/audit/contract.h"

extern "C" {
constinit tessera::audit::DriverSide tessera_audit_driver{.version = tessera::audit::kContractVersion};
}
