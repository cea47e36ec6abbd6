// Records the operations of the interpreter that tests have run. With TESSERA_EXEC_COVERAGE=FOLDER in the
// environment every operation of a kernel is led through a marker before its first run, and at exit one line
// per supported form, operand forms among them, "<form> yes|no", goes to a file of the process in FOLDER;
// scripts/softgpu_coverage.py adds them up. Without the variable watch() does nothing. Tests only; any
// thread.
#pragma once

#include <string>

#include "softgpu/exec/exec.h"

namespace tessera::softgpu::exec {

void watch(const Kernel& kernel);
// A form of an operand ("operand." + its name + "." + opcode) was executed, or was not although it should be.
void note_form(const std::string& form, bool ran);

}  // namespace tessera::softgpu::exec
