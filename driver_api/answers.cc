#include "driver_api/answers.h"

extern "C" {
CUresult tessera_answer_not_initialized() noexcept {
  return CUDA_ERROR_NOT_INITIALIZED;
}
CUresult tessera_answer_not_supported() noexcept {
  return CUDA_ERROR_NOT_SUPPORTED;
}
CUresult tessera_answer_no_device() noexcept {
  return CUDA_ERROR_NO_DEVICE;
}
}

namespace tessera::driver_api {
namespace {

// Version 0 makes the CUDA runtime report error 35 and cudaDriverGetVersion 0, exactly as when libcuda.so.1
// is absent.
CUresult driver_version(int* version) {
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *version = 0;
  return CUDA_SUCCESS;
}

// Both forms as a driver (535, 550) answers a name that it does not know.
CUresult proc_address(const char*, void**, int, cuuint64_t) {
  return CUDA_ERROR_NOT_FOUND;
}

CUresult proc_address_v2(const char*, void** function, int, cuuint64_t,
                         CUdriverProcAddressQueryResult* status) {
  if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *function = nullptr;
  if (status != nullptr) *status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return CUDA_SUCCESS;
}

struct ErrorText {
  CUresult code;
  const char* name;
  const char* text;
};
constexpr ErrorText kErrorTexts[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE",
     "no CUDA driver is installed (libcuda.so.1 was not found)"},
};

CUresult error_lookup(CUresult code, const char** out, const char* ErrorText::*field) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = nullptr;
  for (const ErrorText& row : kErrorTexts) {
    if (row.code == code) *out = row.*field;
  }
  return *out != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult error_name(CUresult code, const char** out) {
  return error_lookup(code, out, &ErrorText::name);
}
CUresult error_string(CUresult code, const char** out) {
  return error_lookup(code, out, &ErrorText::text);
}

}  // namespace

void fill_without_driver(RealDriver* table) {
  void** slots = reinterpret_cast<void**>(table);
  for (uint16_t i = 0; i < kEntryCount; ++i) slots[i] = reinterpret_cast<void*>(&tessera_answer_no_device);
  table->cuDriverGetVersion = &driver_version;
  table->cuGetProcAddress = &proc_address;
  table->cuGetProcAddress_v2 = &proc_address_v2;
  table->cuGetErrorName = &error_name;
  table->cuGetErrorString = &error_string;
}

}  // namespace tessera::driver_api
