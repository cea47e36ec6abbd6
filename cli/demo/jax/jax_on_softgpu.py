"""Imports JAX such that it runs on the software GPU (docs/frameworks.md says why each line is there). Before `import jax`:
import jax_on_softgpu. Used by the programs of `tessera demo --workload jax` and by tests/frameworks/workloads."""
import ctypes
import os
import pathlib

# XLA wants a handle of cuBLAS and cuDNN before it compiles; that it finds these libraries loaded is enough.
for folder in map(pathlib.Path, os.environ.get("LD_LIBRARY_PATH", "").split(":")):
    for library in ("libcudart.so.13", "handles/libcublas.so.13", "handles/libcublasLt.so.13", "handles/libcudnn.so.9"):
        if (folder / "handles").is_dir():
            ctypes.CDLL(str(folder / library), ctypes.RTLD_GLOBAL)

# XLA's own kernels replace libraries of machine code, which the software GPU does not execute.
os.environ["XLA_FLAGS"] = " ".join([
    "--xla_gpu_autotune_level=0", "--xla_gpu_enable_libnvptxcompiler=false", "--xla_gpu_enable_cublaslt=false",
    "--xla_gpu_cublas_fallback=false", "--xla_gpu_triton_gemm_any=true", os.environ.get("XLA_FLAGS", "")])
os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"
os.environ["JAX_PLATFORMS"] = "cuda"
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

from jax._src import hardware_utils  # noqa: E402

hardware_utils.has_visible_nvidia_gpu = lambda: True  # it looks for a device file, which the software GPU has not
