// Finds the directory of the arbiter's socket, the arbiter program and GPU descriptions, and starts the arbiter. Called
// by Engine::connect (any thread) and the arbiter's main. Environment: see README.md.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/scoped_fd.h"
#include "base/units.h"
#include "profiles/gpu_description.h"

namespace tessera::softgpu::timing {

// How long an arbiter may take to start or to answer. One that has ended is noticed at once, so this bounds only what hangs.
// A machine whose processors are all busy was seen not to run a ready process for a minute and more.
constexpr uint64_t kArbiterPatienceNs = 240 * base::kNsPerS;

// Directory of this user's arbiter, created 0700 if absent; refused if somebody else could write there.
// Device 0 lives in the directory itself, device N in `device<N>` below it.
base::Result<std::string> runtime_directory(unsigned device = 0);
std::string socket_path(const std::string& directory);
// A description named by path, by bare name ("h200"), or, empty, TESSERA_SOFTGPU_GPU, else test4.
base::Result<std::string> find_description(const std::string& name);
// The machine's devices, each as find_description() takes it: TESSERA_SOFTGPU_DEVICES is a number of equal ones or a list.
base::Result<std::vector<std::string>> device_descriptions(size_t most);
// Devices of one description are told apart by their number: UUID and PCI bus.
void number(profiles::GpuDescription& gpu, unsigned index);
std::string uuid_text(const std::array<uint8_t, 16>& uuid);  // "GPU-..."
std::vector<std::string> split(const std::string& list);     // at commas
bool is_number(const std::string& text);
// TESSERA_SOFTGPU_STRETCH: how many times slower than its description the device runs; 1 if it is not set.
base::Result<double> stretch_from_environment();
// A connected socket, if somebody listens.
base::Result<base::ScopedFd> try_connect(const std::string& socket_path);
// A connected socket; starts an arbiter if nobody listens, with the description named (empty: the
// environment's).
base::Result<base::ScopedFd> connect_to_arbiter(unsigned device = 0, const std::string& description = "");

}  // namespace tessera::softgpu::timing
