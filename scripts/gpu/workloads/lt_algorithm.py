"""Does the algorithm that cuBLASLt chooses for a product suit slabs of it, as --split-operations makes them? By cublasLtMatmulAlgoCheck, in the
current context; nothing is computed. Matrices are stored by columns, A is m x k, B k x n, C and D m x n."""
import ctypes

LIBRARY = "libcublasLt.so.13"
COMPUTE_32F, R_32F, MAX_WORKSPACE_BYTES = 68, 0, 1  # cublasComputeType_t, cudaDataType_t, cublasLtMatmulPreferenceAttributes_t
TYPES = {"float32": R_32F, "float16": 2, "bfloat16": 14}
WORKSPACE_BYTES = 32 << 20
COUNTS = (2, 4, 8, 16)


class Result(ctypes.Structure):  # cublasLtMatmulHeuristicResult_t
    _fields_ = [("algorithm", ctypes.c_uint64 * 8), ("workspace_bytes", ctypes.c_size_t), ("status", ctypes.c_int), ("waves", ctypes.c_float),
                ("reserved", ctypes.c_int * 4)]


def checked(m, n, k, type_name):
    library, handle, product, preference = ctypes.CDLL(LIBRARY), *(ctypes.c_void_p() for _ in range(3))
    type_, held = TYPES[type_name], []

    def call(name, *arguments):
        if status := getattr(library, name)(*arguments):
            raise RuntimeError(f"{name} said {status}")

    def layouts(rows, columns):
        made = []
        for height, width, leading in ((rows, k, m), (k, columns, k), (rows, columns, m), (rows, columns, m)):
            made.append(ctypes.c_void_p())
            call("cublasLtMatrixLayoutCreate", ctypes.byref(made[-1]), type_, ctypes.c_uint64(height), ctypes.c_uint64(width),
                 ctypes.c_int64(leading))
        held.extend(made)
        return made

    call("cublasLtCreate", ctypes.byref(handle))
    call("cublasLtMatmulDescCreate", ctypes.byref(product), COMPUTE_32F, R_32F)
    call("cublasLtMatmulPreferenceCreate", ctypes.byref(preference))
    limit, chosen, count = ctypes.c_uint64(WORKSPACE_BYTES), Result(), ctypes.c_int()
    call("cublasLtMatmulPreferenceSetAttribute", preference, MAX_WORKSPACE_BYTES, ctypes.byref(limit), ctypes.c_size_t(8))
    call("cublasLtMatmulAlgoGetHeuristic", handle, product, *layouts(m, n), preference, 1, ctypes.byref(chosen), ctypes.byref(count))

    def check(rows, columns):
        said = Result()
        status = library.cublasLtMatmulAlgoCheck(handle, product, *layouts(rows, columns), ctypes.byref(chosen.algorithm), ctypes.byref(said))
        return {"status": status, "workspace_bytes": said.workspace_bytes} if status == 0 else {"status": status}

    answer = {"workspace_bytes": chosen.workspace_bytes, "whole": check(m, n),
              "columns": {pieces: check(m, n // pieces) for pieces in COUNTS}, "rows": {pieces: check(m // pieces, n) for pieces in COUNTS}}
    for layout in held:
        library.cublasLtMatrixLayoutDestroy(layout)
    library.cublasLtMatmulPreferenceDestroy(preference)
    library.cublasLtMatmulDescDestroy(product)
    library.cublasLtDestroy(handle)
    return answer
