#include "interpose/audit/contract.h"

extern "C" {
// Defined in interpose/hooks; null in the pass-through build.
__attribute__((weak, visibility("hidden"))) int tessera_nvml_memory_info(void*, void*) noexcept;
__attribute__((weak, visibility("hidden"))) int tessera_nvml_memory_info_v2(void*, void*) noexcept;

tessera::audit::DriverSide tessera_audit_driver{
    .version = tessera::audit::kContractVersion,
    .management_hooks = {
        {"nvmlDeviceGetMemoryInfo", reinterpret_cast<void*>(&tessera_nvml_memory_info)},
        {"nvmlDeviceGetMemoryInfo_v2", reinterpret_cast<void*>(&tessera_nvml_memory_info_v2)}}};
}
