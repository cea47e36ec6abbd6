// Registrations of nvcc's generated code: images, kernels and variables, by host address. Images are handed to the
// driver (cuLibraryLoadData) when the first of their kernels or variables is needed, not before. Called by
// generated_abi.cc (registration, before main or inside dlopen) and the API files; any thread; one mutex. Kernel
// handles live as long as their library, i.e. they survive cudaDeviceReset.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

namespace tessera::softgpu::runtime {

struct Image;  // one registered fat binary

Image* add_image(const void* wrapper);
void add_kernel(Image* image, const void* host, const char* name);
void add_variable(Image* image, const void* host, const char* name, size_t size_bytes);
// `host_slot` is the program's pointer to the managed variable; written when the image is initialised.
void add_managed_variable(Image* image, void** host_slot, const char* name, size_t size_bytes);
void remove_image(Image* image);

// Loads an image and fills its managed pointers. Needs a context if there are any.
cudaError_t initialise_image(Image* image);

// A kernel by host address, or a handle that came from us or from a library (taken as it is).
// cudaErrorInvalidDeviceFunction if neither; the driver's error if its image could not be loaded.
cudaError_t find_kernel(const void* function, CUkernel* kernel);
void remember_kernel(CUkernel kernel);
// The error of the last failed lookup; generated code ignores it and launches with a null handle.
cudaError_t last_kernel_failure();

// Device address and size of a variable by host address. Needs a context.
cudaError_t find_variable(const void* symbol, CUdeviceptr* address, size_t* size_bytes);

}  // namespace tessera::softgpu::runtime
