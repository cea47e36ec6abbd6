// The sample programs' matrix product, for the bench.
#include "../../../kernels/samples/gemm.cuh"
