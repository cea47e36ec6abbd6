// Describes a GPU, as far as the software GPU and the schedulers need it: limits, speeds, overheads and device
// attributes. Read from profiles/gpus/*.toml by softgpu (driver and arbiter), cli and tests; any thread. Plain data,
// owned by the caller. Does not look at hardware and does not know the driver API's types: attributes are numbers as in
// CUdevice_attribute.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>

#include "base/result.h"

namespace tessera::profiles {

struct GpuDescription {
  std::string path;                // file it came from
  std::string name;                // as cuDeviceGetName reports it
  std::array<uint8_t, 16> uuid{};  // hash of uuid_seed; stable for a description
  uint32_t cc_major = 0, cc_minor = 0;

  struct Sm {  // one streaming multiprocessor
    uint32_t count = 0;
    double clock_hz = 0;
    double issue_per_clock = 4;          // warp instructions of all its warps together
    double warp_issue_per_clock = 0.25;  // of one warp alone: dependent instructions (latency)
    double bytes_per_clock = 64;         // what one SM can draw from the memory system
    uint32_t max_threads = 2048, max_blocks = 32, registers = 65536, shared_bytes = 0;
  } sm;
  struct Block {
    uint32_t max_threads = 1024, max_registers = 65536;
    uint32_t shared_bytes = 49152;          // without opting in
    uint32_t shared_optin_bytes = 0;        // largest, after cuFuncSetAttribute
    uint32_t reserved_shared_bytes = 1024;  // taken by the system per block
  } block;
  struct Memory {
    uint64_t bytes = 0;
    double bytes_per_s = 0;  // DRAM
    double clock_hz = 0;
    uint32_t bus_bits = 0;
    uint64_t l2_bytes = 0;
  } memory;
  struct Transfer {
    double h2d_bytes_per_s = 0, d2h_bytes_per_s = 0;
    double overhead_ns = 0;  // per copy
    uint32_t engines = 2;    // as reported; the model has one per direction
  } transfer;
  struct Peak {  // operations per second, dense
    double fp64 = 0, fp32 = 0, fp16 = 0, tensor_fp64 = 0, tensor_tf32 = 0, tensor_fp16 = 0, tensor_fp8 = 0,
           tensor_int8 = 0;
  } peak;
  struct Time {
    double launch_overhead_ns = 0;  // ready kernel -> first block may start
    double slice_ns = 0;            // what one slice more of a kernel costs; 0 = not measured
    double block_overhead_ns = 0;   // SM time per block on top of its instructions
    double timeslice_ns = 0;        // default time slice of one context
    double switch_ns = 0;           // context switch between two slices
  } time;
  // Durations of a program's calls, as measured; ns, 0 = not measured. The simulator reads them (scenarios, `description`).
  struct Calls {
    double launch_ns = 0;         // a launch in the thread that makes it
    double sync_ns = 0;           // completion until a synchronise returns
    double marker_ns = 0;         // completion until a marker is seen
    double wait_call_ns = 0;      // a wait for a value in the thread that makes it
    double wait_ns = 0;           // on the device, where the value is there
    double open_ns = 0;           // store of the value until the device goes on
    double confine_ns = 0;        // to a stream of some multiprocessors and back, on the device
    uint32_t queue_launches = 0;  // that fit into a stream that waits
  } calls;
  // How much longer a kernel takes beside one that fills the GPU, as measured: 1.35 = 2.35 times as long; negative =
  // not measured. Named own class, neighbour's class.
  struct Contention {
    double compute_compute = -1, compute_memory = -1, memory_compute = -1, memory_memory = -1;
  } contention, contention_disjoint;  // disjoint: on multiprocessors of its own

  std::map<int, int> attributes;  // overrides from [attributes], by CUdevice_attribute number

  double issue_per_s() const { return sm.clock_hz * sm.issue_per_clock; }  // warp instructions, one SM
  double tensor_per_s() const { return peak.tensor_fp16 / sm.count; }      // one SM
};

// Errors carry "path:line:column: what is wrong".
base::Result<GpuDescription> load_gpu_description(const std::string& path);
base::Result<GpuDescription> parse_gpu_description(const std::string& text, const std::string& path);

// Value of CUdevice_attribute `number`; false if this table does not know it.
bool gpu_attribute(const GpuDescription& gpu, int number, int* value);

// Per-SM residency of one kernel; 0 if not even one block fits.
uint32_t blocks_per_sm(const GpuDescription& gpu, uint32_t threads_per_block, uint32_t registers_per_thread,
                       uint32_t shared_bytes_per_block);
// The resources of an SM that one block takes, with the hardware's allocation granularity.
uint32_t registers_per_block(uint32_t threads_per_block, uint32_t registers_per_thread);
uint32_t shared_per_block(const GpuDescription& gpu, uint32_t shared_bytes_per_block);

}  // namespace tessera::profiles
