/* Everything that a program does with a driver, on one whose calls fail at random: it uses what it was given, and goes on without
   what it was not. It begins when a line comes. Linked with a driver. */
#include <stdio.h>
#include <string.h>

typedef void* Handle;
typedef unsigned long long Address;
int cuInit(unsigned);
int cuDeviceGet(int*, int);
int cuCtxCreate_v2(Handle*, unsigned, int);
int cuCtxDestroy_v2(Handle);
int cuDevicePrimaryCtxRetain(Handle*, int);
int cuDevicePrimaryCtxRelease_v2(int);
int cuCtxSetCurrent(Handle);
int cuCtxGetCurrent(Handle*);
int cuCtxSynchronize(void);
int cuModuleLoadData(Handle*, const void*);
int cuModuleGetFunction(Handle*, Handle, const char*);
int cuModuleUnload(Handle);
int cuStreamCreate(Handle*, unsigned);
int cuStreamSynchronize(Handle);
int cuStreamQuery(Handle);
int cuStreamDestroy_v2(Handle);
int cuEventCreate(Handle*, unsigned);
int cuEventRecord(Handle, Handle);
int cuEventSynchronize(Handle);
int cuEventDestroy_v2(Handle);
int cuMemAlloc_v2(Address*, size_t);
int cuMemFree_v2(Address);
int cuMemcpyHtoDAsync_v2(Address, const void*, size_t, Handle);
int cuMemsetD8Async(Address, unsigned char, size_t, Handle);
int cuLaunchKernel(Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Handle, void**, void**);
int cuStreamBeginCapture_v2(Handle, int);
int cuStreamEndCapture(Handle, Handle*);
int cuGraphInstantiateWithFlags(Handle*, Handle, unsigned long long);
int cuGraphLaunch(Handle, Handle);
int cuGraphExecDestroy(Handle);
int cuGraphDestroy(Handle);

static const char kText[] = ".version 8.0\n.target sm_75\n.address_size 64\n.visible .entry add(.param .u64 p)\n{\n ret;\n}\n";

static int launch(Handle kernel, Handle stream) {
  Address parameter = 0;
  void* parameters[] = {&parameter};
  return kernel && cuLaunchKernel(kernel, 64, 1, 1, 32, 1, 1, 0, stream, parameters, NULL) == 0;
}

static int captured(Handle kernel, Handle stream) {
  Handle graph = NULL, executable = NULL;
  int done = 0;
  if (cuStreamBeginCapture_v2(stream, 2) != 0) return 0;
  launch(kernel, stream);
  while (cuStreamEndCapture(stream, &graph) != 0) graph = NULL; /* it stays open until then */
  if (cuGraphInstantiateWithFlags(&executable, graph, 0) == 0) {
    done = cuGraphLaunch(executable, stream) == 0;
    cuGraphExecDestroy(executable);
  }
  cuGraphDestroy(graph);
  return done;
}

int main(void) {
  char bytes[4096];
  int done = 0;
  Handle first = NULL;
  memset(bytes, 1, sizeof bytes);
  if (cuInit(0) != 0) return 3;
  if (cuDevicePrimaryCtxRetain(&first, 0) == 0) cuCtxSetCurrent(first); /* it has a GPU from now on */
  if (getchar() != '\n') return 3;
  for (int round = 0; round < 50; round++) {
    Handle context = NULL, module = NULL, kernel = NULL, stream = NULL, event = NULL;
    Address memory = 0;
    const int primary = round % 2;
    if ((primary ? cuDevicePrimaryCtxRetain(&context, 0) : cuCtxCreate_v2(&context, 0, 0)) != 0) continue;
    if (cuCtxSetCurrent(context) != 0) continue;
    if (cuModuleLoadData(&module, kText) != 0) module = NULL;
    if (!module || cuModuleGetFunction(&kernel, module, "add") != 0) kernel = NULL;
    if (cuStreamCreate(&stream, 1) != 0) stream = NULL;
    if (cuEventCreate(&event, 0) != 0) event = NULL;
    if (cuMemAlloc_v2(&memory, sizeof bytes) != 0) memory = 0;
    if (memory) cuMemcpyHtoDAsync_v2(memory, bytes, sizeof bytes, stream);
    if (memory) cuMemsetD8Async(memory, 0, sizeof bytes, stream);
    for (int i = 0; i < 20; i++) done += launch(kernel, stream);
    if (stream) done += captured(kernel, stream);
    if (event && cuEventRecord(event, stream) == 0) cuEventSynchronize(event);
    cuStreamQuery(stream);
    cuStreamSynchronize(stream);
    cuCtxSynchronize();
    if (memory) cuMemFree_v2(memory);
    if (event) cuEventDestroy_v2(event);
    if (stream) cuStreamDestroy_v2(stream);
    if (module) cuModuleUnload(module);
    if (primary)
      cuDevicePrimaryCtxRelease_v2(0);
    else
      cuCtxDestroy_v2(context);
  }
  puts(done > 0 ? "done" : "nothing was launched");
  return 0;
}
