// Handles of cuBLAS, cuBLASLt and cuDNN, and nothing else of them: for programs that want a handle from each before they
// compile kernels of their own (XLA). One file, three libraries in lib/softgpu/handles, which is on no search path: they are
// preloaded by name where they are wanted (docs/frameworks.md). What a handle remembers is given back; what is not here is
// not exported, which XLA takes as "not there". Signatures as in the reference manuals of the libraries; statuses: 0 is
// success, 1 (cuBLAS) is not initialised, 2000 (cuDNN) is a bad parameter.
#include <cstddef>

namespace {

struct Handle {
  void* stream = nullptr;
  int math_mode = 0, pointer_mode = 0, atomics_mode = 0;
};

template <class T>
int create(T** handle, int bad) {
  if (!handle) return bad;
  *handle = new T;
  return 0;
}
template <class T>
int destroy(T* handle, int bad) {
  if (!handle) return bad;
  delete handle;
  return 0;
}
template <class T>
int set(Handle* handle, T Handle::*what, T value, int bad) {
  if (!handle) return bad;
  handle->*what = value;
  return 0;
}
template <class T>
int get(const Handle* handle, T Handle::*what, T* value, int bad) {
  if (!handle || !value) return bad;
  *value = handle->*what;
  return 0;
}

[[maybe_unused]] constexpr int kRuntimeVersion = 13000;

}  // namespace

extern "C" {

#if defined(TESSERA_CUBLAS)
constexpr int kBad = 1;
int cublasCreate_v2(Handle** handle) {
  return create(handle, kBad);
}
int cublasDestroy_v2(Handle* handle) {
  return destroy(handle, kBad);
}
int cublasSetStream_v2(Handle* handle, void* stream) {
  return set(handle, &Handle::stream, stream, kBad);
}
int cublasGetStream_v2(Handle* handle, void** stream) {
  return get(handle, &Handle::stream, stream, kBad);
}
int cublasSetMathMode(Handle* handle, int mode) {
  return set(handle, &Handle::math_mode, mode, kBad);
}
int cublasGetMathMode(Handle* handle, int* mode) {
  return get(handle, &Handle::math_mode, mode, kBad);
}
int cublasSetPointerMode_v2(Handle* handle, int mode) {
  return set(handle, &Handle::pointer_mode, mode, kBad);
}
int cublasGetPointerMode_v2(Handle* handle, int* mode) {
  return get(handle, &Handle::pointer_mode, mode, kBad);
}
int cublasSetAtomicsMode(Handle* handle, int mode) {
  return set(handle, &Handle::atomics_mode, mode, kBad);
}
int cublasGetAtomicsMode(Handle* handle, int* mode) {
  return get(handle, &Handle::atomics_mode, mode, kBad);
}
int cublasSetWorkspace_v2(Handle* handle, void*, size_t) {
  return handle ? 0 : kBad;
}
int cublasGetVersion_v2(Handle* handle, int* version) {
  return handle && version ? (*version = 130000, 0) : kBad;
}
const char* cublasGetStatusName(int status) {
  return status == 0 ? "CUBLAS_STATUS_SUCCESS" : "CUBLAS_STATUS_NOT_INITIALIZED";
}
const char* cublasGetStatusString(int status) {
  return status == 0 ? "success" : "the library was not initialized";
}
#elif defined(TESSERA_CUBLASLT)
constexpr int kBad = 1;
int cublasLtCreate(Handle** handle) {
  return create(handle, kBad);
}
int cublasLtDestroy(Handle* handle) {
  return destroy(handle, kBad);
}
size_t cublasLtGetVersion() {
  return 130000;
}
size_t cublasLtGetCudartVersion() {
  return kRuntimeVersion;
}
#else
constexpr int kBad = 2000;
int cudnnCreate(Handle** handle) {
  return create(handle, kBad);
}
int cudnnDestroy(Handle* handle) {
  return destroy(handle, kBad);
}
int cudnnSetStream(Handle* handle, void* stream) {
  return set(handle, &Handle::stream, stream, kBad);
}
int cudnnGetStream(Handle* handle, void** stream) {
  return get(handle, &Handle::stream, stream, kBad);
}
size_t cudnnGetVersion() {
  return 91300;
}
size_t cudnnGetCudartVersion() {
  return kRuntimeVersion;
}
const char* cudnnGetErrorString(int status) {
  return status == 0 ? "CUDNN_STATUS_SUCCESS" : "CUDNN_STATUS_BAD_PARAM";
}
int cudnnGetProperty(int type, int* value) {
  constexpr int kVersion[] = {9, 13, 0};  // major, minor, patch
  return type >= 0 && type < 3 && value ? (*value = kVersion[type], 0) : kBad;
}
#endif

}  // extern "C"
