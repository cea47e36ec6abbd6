// Links PTX modules into one, as nvlink does with relocatable device code: declarations meet definitions,
// weak definitions give way, names that are private to a module are kept apart. Used for -rdc images (several
// translation units per image) and by cuLink*. Any thread, no state.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/ptx/ir.h"

namespace tessera::softgpu::driver {

struct LinkInput {
  ptx::Module module;
  std::string name;  // for messages
};

// The module calls what the device runtime library would bring (cudaGraphSetConditional)?
bool needs_device_runtime(const ptx::Module& module);
LinkInput device_runtime();

// The result keeps its inputs alive. On failure null, and `problems` says what is defined twice or not at
// all, one line each.
std::shared_ptr<const ptx::Module> link_modules(std::vector<LinkInput> inputs, std::string* problems);

}  // namespace tessera::softgpu::driver
