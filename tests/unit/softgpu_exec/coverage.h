// Which operations of the interpreter the tests have run. With TESSERA_EXEC_COVERAGE=FOLDER in the
// environment every operation of a kernel is led through a marker before its first run, and at exit one line
// per supported form, "<form> yes|no", goes to a file of the process in FOLDER; scripts/softgpu_coverage.py
// adds them up. Without the variable watch() does nothing. Tests only; any thread.
#pragma once

#include "softgpu/exec/exec.h"

namespace tessera::softgpu::exec {

void watch(const Kernel& kernel);

}  // namespace tessera::softgpu::exec
