// The log that cuLogs* read. Any thread; the callbacks that programs registered run in it.
#pragma once

#include <string_view>

namespace tessera::softgpu::driver {

void log_line(std::string_view text);  // without its newline

}  // namespace tessera::softgpu::driver
