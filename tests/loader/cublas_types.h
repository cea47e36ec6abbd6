// Types of cuBLAS for programs that are built without its header; distinct, so that arguments can be made by type.
#pragma once

#include <cstddef>
#include <cstdint>

struct CUstream_st;
struct cublasContext;
struct cuComplex;
struct cuDoubleComplex;
struct __half;
struct __nv_bfloat16;
using cublasHandle_t = cublasContext*;
using cudaStream_t = CUstream_st*;
using cublasStatus_t = int;
enum cublasOperation_t : int {};
enum cublasComputeType_t : int {};
enum cublasDiagType_t : int {};
enum cublasFillMode_t : int {};
enum cublasGemmAlgo_t : int {};
enum cublasSideMode_t : int {};
enum cudaDataType : int {};
using cudaDataType_t = cudaDataType;
