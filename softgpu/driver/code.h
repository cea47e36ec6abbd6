// From an image that a program hands over (fatbin, PTX text, cubin) to PTX that the interpreter can load, and
// from there to modules and functions. The software GPU executes PTX only: an image with nothing but machine
// code is CUDA_ERROR_NO_BINARY_FOR_GPU. Any thread.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "softgpu/driver/objects.h"

namespace tessera::softgpu::driver {

// The newest PTX that a device of compute capability `sm` (90) may run. `problem` receives the text for the
// JIT error log.
CUresult read_code(const void* image, unsigned sm, Code* code, std::string* problem);
inline constexpr uint64_t kMostBytesOfFile = uint64_t(4) << 30;  // of code in a file
CUresult read_code_file(const char* path, unsigned sm, Code* code, std::string* problem);
// One input of the linker: the newest PTX in it that `sm` may run.
CUresult read_link_input(std::span<const uint8_t> bytes, unsigned sm, ptx::Module* module,
                         std::string* problem);
CUresult read_link_input(const void* image, unsigned sm, ptx::Module* module, std::string* problem);
// CU_JIT_MAX_REGISTERS among the options; 255 if it is not there or no limit.
uint32_t max_registers(unsigned n, const CUjit_option* options, void* const* values);
// Texts for CU_JIT_ERROR_LOG_BUFFER and CU_JIT_INFO_LOG_BUFFER, with their sizes in values[].
void fill_logs(unsigned n, const CUjit_option* options, void** values, const std::string& errors,
               const std::string& infos);
CUresult load_module(const std::shared_ptr<Context>& context, const Code& code,
                     std::shared_ptr<Module>* module, std::string* problem);
// The function of that name, made on first use. CUDA_ERROR_NOT_FOUND if the module has none,
// CUDA_ERROR_NOT_SUPPORTED, with a report, if it has an instruction that the software GPU does not execute.
CUresult find_function(const std::shared_ptr<Module>& module, const std::string& name,
                       std::shared_ptr<Function>* function);
// CUDA_MODULE_LOADING: functions count as loaded when they are asked for by name, first launched or loaded by
// cuFuncLoad, not with their image. Loading costs no modelled time.
bool loads_lazily();
void unload(const std::shared_ptr<Module>& module);
// The library's module in this context, loaded on first use.
CUresult instance_of(const std::shared_ptr<Library>& library, const std::shared_ptr<Context>& context,
                     std::shared_ptr<Module>* module);
// A CUfunction, or a CUkernel passed as one; the latter is loaded in the current context.
CUresult function_of(const std::shared_ptr<Context>& context, CUfunction handle,
                     std::shared_ptr<Function>* function);
CUresult function_of_kernel(const std::shared_ptr<Context>& context,
                            const std::shared_ptr<LibraryKernel>& kernel,
                            std::shared_ptr<Function>* function);

CUresult get_attribute(const Function& function, CUfunction_attribute attribute, int* value);
CUresult set_attribute(Function& function, CUfunction_attribute attribute, int value);
// Blocks of that many threads that the device holds at once.
uint64_t resident_blocks(const Function& function, uint32_t threads, uint32_t dynamic_shared_bytes);
// Dynamic shared memory that a launch of this function may ask for now.
uint32_t dynamic_shared_limit(const Function& function);

}  // namespace tessera::softgpu::driver
