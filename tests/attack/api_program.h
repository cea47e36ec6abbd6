// One random program of driver-API calls and the oracle beside it: a sequential model of every array, which
// is changed when a call is made. The program has no races: before a call, its stream waits for the events of
// all streams that still work on what the call touches. So the model says what must come out, whatever runs
// beside what. Calls: kernels, copies, fills, host functions, pools, graphs by capture, streams, events. One
// thread; needs a current context.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace tessera::attack {

struct Wrong : std::runtime_error {  // a call failed, or memory is not what the model says
  using std::runtime_error::runtime_error;
};

// Throws Wrong, with the calls that led there. The same seed makes the same program.
void run_api_program(uint64_t seed);

}  // namespace tessera::attack
