// The instructions of one kernel, and what they read that the file fixes. Untrusted bytes; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "kernels/image/image.h"

namespace tessera::image {

struct Relocation {  // what a loader fills in
  uint64_t offset = 0;
  uint32_t type = 0;
  std::string symbol;  // "" of one without a name
  int64_t addend = 0;
};
inline constexpr uint32_t kAddress64 = 2;  // Relocation::type: eight bytes, symbol + addend

struct ConstantBank {
  uint8_t number = 0;
  std::vector<uint8_t> bytes;
  std::vector<Relocation> relocations;
};

struct KernelCode {
  unsigned sm = 0;            // 90
  std::vector<uint8_t> code;  // the kernel at its beginning, then functions that belong to it alone
  std::vector<Relocation> relocations;
  uint32_t param_base = 0;  // of the parameters, in constant bank 0
  uint32_t param_bytes = 0;
  std::array<uint32_t, 3> required_threads = {};  // of a block, by axis, where each launch has these; else 0
  std::vector<ConstantBank> banks;                // but 0, which the driver fills in
};

// kInvalid: not linked machine code, or inconsistent; kNotFound: no such kernel.
base::Result<KernelCode> kernel_code(std::span<const uint8_t> cubin, std::string_view kernel);

}  // namespace tessera::image
