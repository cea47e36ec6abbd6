// Runs random API programs on whatever driver it finds, in one context after another.
#include <cuda.h>

#include "tests/attack/api_program.h"
#include "tests/attack/attack.h"

namespace {

// A context for a few programs: what the driver keeps of one must not disturb the next.
void in_one_context(tessera::attack::Run& run) {
  CUcontext context = nullptr;
  const bool primary = run.random()() % 2 == 0;
  const CUresult made =
      primary ? cuDevicePrimaryCtxRetain(&context, 0) : cuCtxCreate(&context, nullptr, 0, 0);
  if (made != CUDA_SUCCESS || cuCtxSetCurrent(context) != CUDA_SUCCESS) return run.found("no context");
  for (int i = 0; i < 10 && run.goes_on(); ++i) {
    const uint64_t seed = run.random()();
    try {
      tessera::attack::run_api_program(seed);
    } catch (const tessera::attack::Wrong& wrong) {
      run.found("program " + std::to_string(seed) + ": " + wrong.what());
      break;  // the context is not to be trusted any more
    }
    run.ran();
  }
  (void)cuCtxSetCurrent(nullptr);
  const CUresult ended = primary ? cuDevicePrimaryCtxRelease(0) : cuCtxDestroy(context);
  if (ended != CUDA_SUCCESS) run.found("the context does not end: " + std::to_string(ended));
}

}  // namespace

int main(int argc, char** argv) {
  tessera::attack::Run run("api_programs_child", argc, argv);
  if (cuInit(0) != CUDA_SUCCESS) run.found("cuInit fails");
  while (run.goes_on()) in_one_context(run);
  return run.finish();
}
