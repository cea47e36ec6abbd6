"""Kernels after the patterns of CuPy's, on its own headers, compiled by NVRTC without a GPU: PTX of each, and how long it would run.

usage: python cupy_kernels.py HEADERS CUDA_HEADERS FOLDER ARCHITECTURE...     (80, 90, 100 or 120)

CuPy makes its sources when arrays are there, and arrays need a GPU; so these are written by hand: a loop over all elements of
arrays that are contiguous or have strides, and a reduction in shared memory by blocks of 512 threads."""
import ctypes
import pathlib
import sys

MANY = 2**27
MOVED_BYTES_PER_US = 3.35e6  # of an H100

ELEMENTWISE = """
extern "C" __global__ void cupy_{name}({arrays}, CIndexer<{n}> ind) {{
  const ptrdiff_t stride = (ptrdiff_t)blockDim.x * gridDim.x;
  for (ptrdiff_t i = (ptrdiff_t)blockIdx.x * blockDim.x + threadIdx.x; i < ind.size(); i += stride) {{
    ind.set(i);
    {body}
  }}
}}"""
REDUCTION = """
extern "C" __global__ void cupy_{name}(CArray<{type}, {n}, {contiguous}, true> in, CArray<{type}, {n}, true, true> out,
                                       CIndexer<{n}> in_ind, CIndexer<{n}> out_ind, int block_stride) {{
  __shared__ {sum} shared[512];
  const unsigned thread = threadIdx.x;
  const ptrdiff_t stride = (ptrdiff_t)gridDim.x * block_stride;
  for (ptrdiff_t base = (ptrdiff_t)blockIdx.x * block_stride; base < out_ind.size(); base += stride) {{
    const ptrdiff_t i = base + thread % block_stride;
    {sum} all = {identity};
    for (ptrdiff_t j = i + thread / block_stride * out_ind.size(); i < out_ind.size() && j < in_ind.size();
         j += 512 / block_stride * out_ind.size()) {{
      in_ind.set(j);
      const {sum} x = in[in_ind.get()];
      all = {reduce};
    }}
    shared[thread] = all;
    for (unsigned half = 256; half >= block_stride; half >>= 1) {{
      __syncthreads();
      if (thread < half) {{
        const {sum} x = shared[thread + half];
        all = shared[thread];
        shared[thread] = {join};
      }}
    }}
    __syncthreads();
    if (thread < block_stride && i < out_ind.size()) {{
      out_ind.set(i);
      out[out_ind.get()] = {post};
    }}
    __syncthreads();
  }}
}}"""

# Name, type, body: x, y are read, o is written.
ELEMENTS = [
    ("add", "float", "o = x + y;"),
    ("divide", "double", "o = x / y;"),
    ("exponential", "float", "o = exp(x);"),
    ("power", "float", "o = pow(x, y);"),
    ("trigonometry", "float", "o = sin(x) * cos(y) + tanh(x);"),
    ("gelu", "float16", "o = float16((float)x * 0.5f * (1.0f + erff((float)y * 0.70710678f)));"),
    ("halves", "float16", "o = float16((float)x * (float)y + 1.5f);"),
    ("logaddexp", "double", "o = fmax(x, y) + log1p(exp(-fabs(x - y)));"),
    ("conversion", "double", "o = (double)(float)(int)(x * y);"),
]
# Name, type, type of the sum, identity, step, join, result.
SUMS = [
    ("sum", "float", "float", "0.0f", "all + x", "all + x", "shared[thread]"),
    ("mean", "float16", "float", "0.0f", "all + x", "all + x", "float16(shared[thread] / in_ind.size())"),
    ("norm", "double", "double", "0.0", "all + x * x", "all + x", "sqrt(shared[thread])"),
    ("maximum", "float", "float", "-INFINITY", "fmaxf(all, x)", "fmaxf(all, x)", "shared[thread]"),
]


def sources():
    """Name, source, bytes that it moves at a usual size."""
    sizes = {"float16": 2, "float": 4, "double": 8}
    for n, contiguous in (1, "true"), (3, "false"):
        kind = "" if n == 1 else "_strided"
        for name, t, body in ELEMENTS:
            arrays = ", ".join(f"CArray<{t}, {n}, {contiguous}, true> _{a}" for a in "xyo")
            refer = f"const {t} &x = _x[ind.get()], &y = _y[ind.get()]; {t} &o = _o[ind.get()];"
            yield name + kind, ELEMENTWISE.format(name=name, n=n, arrays=arrays, body=f"{refer} {body}"), 3 * sizes[t] * MANY
        for name, t, total, identity, step, join, post in SUMS:
            yield name + kind, REDUCTION.format(name=name, type=t, sum=total, n=n, contiguous=contiguous, identity=identity,
                                                reduce=step, join=join, post=post), sizes[t] * MANY


def ptx_of(nvrtc, source, options):
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), None, 0, None, None)
    failed = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*(o.encode() for o in options)))
    get = "ProgramLog" if failed else "PTX"
    getattr(nvrtc, f"nvrtcGet{get}Size")(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    getattr(nvrtc, f"nvrtcGet{get}")(program, text)
    if failed:
        raise RuntimeError(text.value.decode())
    return text.value.decode()


def main():
    headers, cuda, folder = map(pathlib.Path, sys.argv[1:4])
    nvrtc = ctypes.CDLL("libnvrtc.so.13")
    prologue = "".join(f"#include <cupy/{name}.cuh>\n" for name in ("complex", "carray", "float16", "atomics"))
    prologue += "#define INFINITY __int_as_float(0x7f800000)\n"
    for sm in sys.argv[4:]:
        options = [f"-arch=compute_{sm}{'a' * (int(sm) >= 90)}", "-std=c++17", f"-I{headers}", f"-I{cuda}", f"-I{cuda}/cccl",
                   "--device-as-default-execution-space", "-DCUPY_USE_JITIFY=0"]
        for name, source, moved_bytes in sources():
            out = folder / f"cupy.{name}.sm_{sm}.ptx"
            out.write_text(ptx_of(nvrtc, prologue + source, options))
            out.with_suffix(".us").write_text(f"{moved_bytes / MOVED_BYTES_PER_US:.0f}")


if __name__ == "__main__":
    main()
