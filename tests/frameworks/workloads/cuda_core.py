"""Kernels compiled by NVRTC to PTX and launched through cuda.core."""
import importlib.metadata

import numpy
from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch

VERSION = importlib.metadata.version("cuda-core")
SOURCE = """
extern "C" __global__ void relax(float* out, const float* in, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = 0.5f * in[i] + 0.25f * (in[(i + 1) % n] + in[(i + n - 1) % n]);
}
template <typename T> __global__ void scan_blocks(T* data) {
  __shared__ T shared[128];
  const int t = threadIdx.x, i = blockIdx.x * 128 + t;
  shared[t] = data[i];
  for (int step = 1; step < 128; step *= 2) {
    __syncthreads();
    const T more = t >= step ? shared[t - step] : T(0);
    __syncthreads();
    shared[t] += more;
  }
  data[i] = shared[t] * T(0.01);
}
"""


def work(steps):
    device = Device()
    device.set_current()
    stream = device.create_stream()
    arch = "".join(map(str, device.compute_capability))
    program = Program(SOURCE, code_type="c++", options=ProgramOptions(std="c++17", arch=f"compute_{arch}"))
    module = program.compile("ptx", name_expressions=("scan_blocks<float>",))
    relax, scan = module.get_kernel("relax"), module.get_kernel("scan_blocks<float>")
    blocks = 256
    host = numpy.random.default_rng(1).random(blocks * 128, numpy.float32)
    a, b = (device.memory_resource.allocate(host.nbytes, stream=stream) for _ in range(2))
    pinned = numpy.array(host)
    from cuda.bindings import driver
    driver.cuMemcpyHtoDAsync(int(a.handle), pinned.ctypes.data, host.nbytes, stream.handle)
    config = LaunchConfig(grid=blocks, block=128)
    for _ in range(steps):
        launch(stream, config, relax, b, a, numpy.int32(host.size))
        launch(stream, config, scan, b)
        a, b = b, a
    driver.cuMemcpyDtoHAsync(pinned.ctypes.data, int(a.handle), host.nbytes, stream.handle)
    stream.sync()
    return [pinned]
