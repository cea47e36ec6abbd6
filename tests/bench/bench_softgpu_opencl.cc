#include "tests/bench/bench_softgpu_opencl.h"

#ifdef TS_OPENCL
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>

#include <cstdio>
#include <map>

namespace tessera::bench {
namespace {

const char* const kSource = R"(
kernel void saxpy(float a, global const float* x, global float* y) {
  const int i = get_global_id(0);
  y[i] = a * x[i] + y[i];
}
kernel void sgemm_naive(global const float* a, global const float* b, global float* c, int n) {
  const int column = get_global_id(0), row = get_global_id(1);
  float sum = 0;
  for (int k = 0; k < n; ++k) sum += a[row * n + k] * b[k * n + column];
  c[row * n + column] = sum;
}
kernel void sgemm_tiled(global const float* a, global const float* b, global float* c, int n) {
  local float as[16][16], bs[16][16];
  const int x = get_local_id(0), y = get_local_id(1), column = get_group_id(0) * 16 + x, row = get_group_id(1) * 16 + y;
  float sum = 0;
  for (int t = 0; t < n; t += 16) {
    as[y][x] = a[row * n + t + x];
    bs[y][x] = b[(t + y) * n + column];
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int k = 0; k < 16; ++k) sum += as[y][k] * bs[k][x];
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  c[row * n + column] = sum;
}
kernel void reduction(global const float* x, global float* sums) {
  local float part[256];
  const int t = get_local_id(0);
  part[t] = x[get_group_id(0) * 256 + t];
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int d = 128; d > 0; d /= 2) {
    if (t < d) part[t] += part[t + d];
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  if (t == 0) sums[get_group_id(0)] = part[0];
}
kernel void mandelbrot(global int* out, int width, int height, int most) {
  const int px = get_global_id(0), py = get_global_id(1);
  const float cx = -2.0f + 3.0f * px / width, cy = -1.5f + 3.0f * py / height;
  float x = 0, y = 0;
  int n = 0;
  while (n < most && x * x + y * y < 4.0f) {
    const float next = x * x - y * y + cx;
    y = 2 * x * y + cy;
    x = next;
    ++n;
  }
  out[py * width + px] = n;
}
)";

class OpenClDevice final : public OpenCl {
 public:
  ~OpenClDevice() override {
    for (auto& [name, kernel] : kernels_) clReleaseKernel(kernel);
    for (cl_mem b : buffers_) clReleaseMemObject(b);
    if (program_) clReleaseProgram(program_);
    if (queue_) clReleaseCommandQueue(queue_);
    if (context_) clReleaseContext(context_);
  }
  bool start(std::string* why_not) {
    cl_uint n = 0;
    cl_platform_id platforms[8];
    if (clGetPlatformIDs(8, platforms, &n) != CL_SUCCESS) n = 0;
    cl_device_id device = nullptr;
    for (cl_uint i = 0; i < n && i < 8 && !device; ++i)
      if (clGetDeviceIDs(platforms[i], CL_DEVICE_TYPE_CPU, 1, &device, nullptr) != CL_SUCCESS)
        device = nullptr;
    if (!device)
      return *why_not = "no OpenCL device on the CPU (scripts/setup.sh --bench installs PoCL)", false;
    cl_int error = 0;
    context_ = clCreateContext(nullptr, 1, &device, nullptr, nullptr, &error);
    if (error) return *why_not = "no OpenCL context", false;
    queue_ = clCreateCommandQueue(context_, device, 0, &error);
    const char* source = kSource;
    if (!error) program_ = clCreateProgramWithSource(context_, 1, &source, nullptr, &error);
    if (error || clBuildProgram(program_, 1, &device, "", nullptr, nullptr) != CL_SUCCESS)
      return *why_not = "the OpenCL kernels cannot be built", false;
    return true;
  }
  int buffer(const void* contents, size_t bytes) override {
    buffers_.push_back(clCreateBuffer(context_, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, bytes,
                                      const_cast<void*>(contents), nullptr));
    return int(buffers_.size()) - 1;
  }
  void read(int buffer, void* to, size_t bytes) override {
    clEnqueueReadBuffer(queue_, buffers_[size_t(buffer)], CL_TRUE, 0, bytes, to, 0, nullptr, nullptr);
  }
  void write(int buffer, const void* from, size_t bytes) override {
    clEnqueueWriteBuffer(queue_, buffers_[size_t(buffer)], CL_TRUE, 0, bytes, from, 0, nullptr, nullptr);
  }
  bool run(const std::string& name, const size_t (&global)[2], const size_t (&local)[2],
           const std::vector<OpenClArgument>& arguments) override {
    cl_kernel& kernel = kernels_[name];
    if (!kernel) kernel = clCreateKernel(program_, name.c_str(), nullptr);
    cl_int error = kernel ? CL_SUCCESS : CL_INVALID_KERNEL;
    for (size_t i = 0; i < arguments.size() && !error; ++i) {
      const OpenClArgument& a = arguments[i];
      error = a.buffer >= 0 ? clSetKernelArg(kernel, cl_uint(i), sizeof(cl_mem), &buffers_[size_t(a.buffer)])
                            : clSetKernelArg(kernel, cl_uint(i), a.bytes, a.value);
    }
    if (!error)
      error = clEnqueueNDRangeKernel(queue_, kernel, 2, nullptr, global, local, 0, nullptr, nullptr);
    if (!error) error = clFinish(queue_);
    if (error) fprintf(stderr, "bench_softgpu: OpenCL kernel %s failed with %d\n", name.c_str(), error);
    return !error;
  }

 private:
  cl_context context_ = nullptr;
  cl_command_queue queue_ = nullptr;
  cl_program program_ = nullptr;
  std::vector<cl_mem> buffers_;
  std::map<std::string, cl_kernel> kernels_;
};

}  // namespace

std::unique_ptr<OpenCl> OpenCl::open(std::string* why_not) {
  auto device = std::make_unique<OpenClDevice>();
  if (!device->start(why_not)) return nullptr;
  return device;
}

}  // namespace tessera::bench

#else

namespace tessera::bench {

std::unique_ptr<OpenCl> OpenCl::open(std::string* why_not) {
  *why_not = "built without OpenCL (scripts/setup.sh --bench installs it; then configure again)";
  return nullptr;
}

}  // namespace tessera::bench
#endif
