#include "profiles/gpu_attributes.h"

#include <algorithm>
#include <iterator>

namespace tessera::profiles {
namespace {

struct Row {
  const char* name;
  int number;
  double (*value)(const GpuDescription& g);
};

using G = const GpuDescription&;

// Constants: what every described GPU answers, or 0 where the software GPU lacks the feature (clusters of
// NVLink, RDMA, graphics interoperability). A description's [attributes] wins over this table.
constexpr Row kRows[] = {
    {"max_threads_per_block", 1, [](G g) -> double { return double(g.block.max_threads); }},
    {"max_block_dim_x", 2, [](G g) -> double { return double(g.block.max_threads); }},
    {"max_block_dim_y", 3, [](G g) -> double { return double(g.block.max_threads); }},
    {"max_block_dim_z", 4, [](G) -> double { return 64; }},
    {"max_grid_dim_x", 5, [](G) -> double { return 2147483647; }},
    {"max_grid_dim_y", 6, [](G) -> double { return 65535; }},
    {"max_grid_dim_z", 7, [](G) -> double { return 65535; }},
    {"max_shared_memory_per_block", 8, [](G g) -> double { return double(g.block.shared_bytes); }},
    {"total_constant_memory", 9, [](G) -> double { return 65536; }},
    {"warp_size", 10, [](G) -> double { return 32; }},
    {"max_pitch", 11, [](G) -> double { return 2147483647; }},
    {"max_registers_per_block", 12, [](G g) -> double { return double(g.block.max_registers); }},
    {"clock_rate", 13, [](G g) -> double { return double(g.sm.clock_hz / 1e3); }},
    {"texture_alignment", 14, [](G) -> double { return 512; }},
    {"gpu_overlap", 15, [](G) -> double { return 1; }},
    {"multiprocessor_count", 16, [](G g) -> double { return double(g.sm.count); }},
    {"kernel_exec_timeout", 17, [](G) -> double { return 0; }},
    {"integrated", 18, [](G) -> double { return 0; }},
    {"can_map_host_memory", 19, [](G) -> double { return 1; }},
    {"compute_mode", 20, [](G) -> double { return 0; }},
    {"maximum_texture1d_width", 21, [](G) -> double { return 131072; }},
    {"maximum_texture2d_width", 22, [](G) -> double { return 131072; }},
    {"maximum_texture2d_height", 23, [](G) -> double { return 65536; }},
    {"maximum_texture3d_width", 24, [](G) -> double { return 16384; }},
    {"maximum_texture3d_height", 25, [](G) -> double { return 16384; }},
    {"maximum_texture3d_depth", 26, [](G) -> double { return 16384; }},
    {"maximum_texture2d_layered_width", 27, [](G) -> double { return 32768; }},
    {"maximum_texture2d_layered_height", 28, [](G) -> double { return 32768; }},
    {"maximum_texture2d_layered_layers", 29, [](G) -> double { return 2048; }},
    {"surface_alignment", 30, [](G) -> double { return 512; }},
    {"concurrent_kernels", 31, [](G) -> double { return 1; }},
    {"ecc_enabled", 32, [](G) -> double { return 0; }},
    {"pci_bus_id", 33, [](G) -> double { return 1; }},
    {"pci_device_id", 34, [](G) -> double { return 0; }},
    {"tcc_driver", 35, [](G) -> double { return 0; }},
    {"memory_clock_rate", 36, [](G g) -> double { return double(g.memory.clock_hz / 1e3); }},
    {"global_memory_bus_width", 37, [](G g) -> double { return double(g.memory.bus_bits); }},
    {"l2_cache_size", 38, [](G g) -> double { return double(g.memory.l2_bytes); }},
    {"max_threads_per_multiprocessor", 39, [](G g) -> double { return double(g.sm.max_threads); }},
    {"async_engine_count", 40, [](G g) -> double { return double(g.transfer.engines); }},
    {"unified_addressing", 41, [](G) -> double { return 1; }},
    {"maximum_texture1d_layered_width", 42, [](G) -> double { return 32768; }},
    {"maximum_texture1d_layered_layers", 43, [](G) -> double { return 2048; }},
    {"can_tex2d_gather", 44, [](G) -> double { return 1; }},
    {"maximum_texture2d_gather_width", 45, [](G) -> double { return 32768; }},
    {"maximum_texture2d_gather_height", 46, [](G) -> double { return 32768; }},
    {"maximum_texture3d_width_alternate", 47, [](G) -> double { return 8192; }},
    {"maximum_texture3d_height_alternate", 48, [](G) -> double { return 8192; }},
    {"maximum_texture3d_depth_alternate", 49, [](G) -> double { return 32768; }},
    {"pci_domain_id", 50, [](G) -> double { return 0; }},
    {"texture_pitch_alignment", 51, [](G) -> double { return 32; }},
    {"maximum_texturecubemap_width", 52, [](G) -> double { return 32768; }},
    {"maximum_texturecubemap_layered_width", 53, [](G) -> double { return 32768; }},
    {"maximum_texturecubemap_layered_layers", 54, [](G) -> double { return 2046; }},
    {"maximum_surface1d_width", 55, [](G) -> double { return 32768; }},
    {"maximum_surface2d_width", 56, [](G) -> double { return 131072; }},
    {"maximum_surface2d_height", 57, [](G) -> double { return 65536; }},
    {"maximum_surface3d_width", 58, [](G) -> double { return 16384; }},
    {"maximum_surface3d_height", 59, [](G) -> double { return 16384; }},
    {"maximum_surface3d_depth", 60, [](G) -> double { return 16384; }},
    {"maximum_surface1d_layered_width", 61, [](G) -> double { return 32768; }},
    {"maximum_surface1d_layered_layers", 62, [](G) -> double { return 2048; }},
    {"maximum_surface2d_layered_width", 63, [](G) -> double { return 32768; }},
    {"maximum_surface2d_layered_height", 64, [](G) -> double { return 32768; }},
    {"maximum_surface2d_layered_layers", 65, [](G) -> double { return 2048; }},
    {"maximum_surfacecubemap_width", 66, [](G) -> double { return 32768; }},
    {"maximum_surfacecubemap_layered_width", 67, [](G) -> double { return 32768; }},
    {"maximum_surfacecubemap_layered_layers", 68, [](G) -> double { return 2046; }},
    {"maximum_texture1d_linear_width", 69, [](G) -> double { return 268435456; }},
    {"maximum_texture2d_linear_width", 70, [](G) -> double { return 131072; }},
    {"maximum_texture2d_linear_height", 71, [](G) -> double { return 65000; }},
    {"maximum_texture2d_linear_pitch", 72, [](G) -> double { return 2097120; }},
    {"maximum_texture2d_mipmapped_width", 73, [](G) -> double { return 32768; }},
    {"maximum_texture2d_mipmapped_height", 74, [](G) -> double { return 32768; }},
    {"compute_capability_major", 75, [](G g) -> double { return double(g.cc_major); }},
    {"compute_capability_minor", 76, [](G g) -> double { return double(g.cc_minor); }},
    {"maximum_texture1d_mipmapped_width", 77, [](G) -> double { return 32768; }},
    {"stream_priorities_supported", 78, [](G) -> double { return 1; }},
    {"global_l1_cache_supported", 79, [](G) -> double { return 1; }},
    {"local_l1_cache_supported", 80, [](G) -> double { return 1; }},
    {"max_shared_memory_per_multiprocessor", 81, [](G g) -> double { return double(g.sm.shared_bytes); }},
    {"max_registers_per_multiprocessor", 82, [](G g) -> double { return double(g.sm.registers); }},
    {"managed_memory", 83, [](G) -> double { return 1; }},
    {"multi_gpu_board", 84, [](G) -> double { return 0; }},
    {"multi_gpu_board_group_id", 85, [](G) -> double { return 0; }},
    {"host_native_atomic_supported", 86, [](G) -> double { return 0; }},
    {"single_to_double_precision_perf_ratio", 87,
     [](G g) -> double { return double(g.peak.fp64 > 0 ? g.peak.fp32 / g.peak.fp64 : 64); }},
    {"pageable_memory_access", 88, [](G) -> double { return 0; }},
    {"concurrent_managed_access", 89, [](G) -> double { return 1; }},
    {"compute_preemption_supported", 90, [](G) -> double { return 1; }},
    {"can_use_host_pointer_for_registered_mem", 91, [](G) -> double { return 1; }},
    {"can_use_stream_mem_ops_v1", 92, [](G) -> double { return 0; }},
    {"can_use_64_bit_stream_mem_ops_v1", 93, [](G) -> double { return 0; }},
    {"can_use_stream_wait_value_nor_v1", 94, [](G) -> double { return 0; }},
    {"cooperative_launch", 95, [](G) -> double { return 1; }},
    {"cooperative_multi_device_launch", 96, [](G) -> double { return 0; }},
    {"max_shared_memory_per_block_optin", 97,
     [](G g) -> double { return double(g.block.shared_optin_bytes); }},
    {"can_flush_remote_writes", 98, [](G) -> double { return 0; }},
    {"host_register_supported", 99, [](G) -> double { return 1; }},
    {"pageable_memory_access_uses_host_page_tables", 100, [](G) -> double { return 0; }},
    {"direct_managed_mem_access_from_host", 101, [](G) -> double { return 0; }},
    {"virtual_memory_management_supported", 102, [](G) -> double { return 1; }},
    {"handle_type_posix_file_descriptor_supported", 103, [](G) -> double { return 1; }},
    {"handle_type_win32_handle_supported", 104, [](G) -> double { return 0; }},
    {"handle_type_win32_kmt_handle_supported", 105, [](G) -> double { return 0; }},
    {"max_blocks_per_multiprocessor", 106, [](G g) -> double { return double(g.sm.max_blocks); }},
    {"generic_compression_supported", 107, [](G) -> double { return 0; }},
    {"max_persisting_l2_cache_size", 108, [](G g) -> double { return double(g.memory.l2_bytes) * 0.75; }},
    {"max_access_policy_window_size", 109, [](G) -> double { return 134213632; }},
    {"gpu_direct_rdma_with_cuda_vmm_supported", 110, [](G) -> double { return 0; }},
    {"reserved_shared_memory_per_block", 111,
     [](G g) -> double { return double(g.block.reserved_shared_bytes); }},
    {"sparse_cuda_array_supported", 112, [](G) -> double { return 0; }},
    {"read_only_host_register_supported", 113, [](G) -> double { return 1; }},
    {"timeline_semaphore_interop_supported", 114, [](G) -> double { return 0; }},
    {"memory_pools_supported", 115, [](G) -> double { return 1; }},
    {"gpu_direct_rdma_supported", 116, [](G) -> double { return 0; }},
    {"gpu_direct_rdma_flush_writes_options", 117, [](G) -> double { return 0; }},
    {"gpu_direct_rdma_writes_ordering", 118, [](G) -> double { return 0; }},
    {"mempool_supported_handle_types", 119, [](G) -> double { return 1; }},
    {"cluster_launch", 120, [](G g) -> double { return double(g.cc_major >= 9); }},
    {"deferred_mapping_cuda_array_supported", 121, [](G) -> double { return 0; }},
    {"can_use_64_bit_stream_mem_ops", 122, [](G) -> double { return 1; }},
    {"can_use_stream_wait_value_nor", 123, [](G) -> double { return 1; }},
    {"dma_buf_supported", 124, [](G) -> double { return 0; }},
    {"ipc_event_supported", 125, [](G) -> double { return 1; }},
    {"mem_sync_domain_count", 126, [](G g) -> double { return double(g.cc_major >= 9 ? 4 : 1); }},
    {"tensor_map_access_supported", 127, [](G g) -> double { return double(g.cc_major >= 9); }},
    {"handle_type_fabric_supported", 128, [](G) -> double { return 0; }},
    {"unified_function_pointers", 129, [](G) -> double { return 0; }},
    {"numa_config", 130, [](G) -> double { return 0; }},
    {"numa_id", 131, [](G) -> double { return -1; }},
    {"multicast_supported", 132, [](G) -> double { return 0; }},
    {"mps_enabled", 133, [](G) -> double { return 0; }},
    {"host_numa_id", 134, [](G) -> double { return 0; }},
    {"d3d12_cig_supported", 135, [](G) -> double { return 0; }},
    {"mem_decompress_algorithm_mask", 136, [](G) -> double { return 0; }},
    {"mem_decompress_maximum_length", 137, [](G) -> double { return 0; }},
    {"vulkan_cig_supported", 138, [](G) -> double { return 0; }},
    {"gpu_pci_device_id", 139, [](G) -> double { return 0; }},
    {"gpu_pci_subsystem_id", 140, [](G) -> double { return 0; }},
    {"host_numa_virtual_memory_management_supported", 141, [](G) -> double { return 0; }},
    {"host_numa_memory_pools_supported", 142, [](G) -> double { return 0; }},
    {"host_numa_multinode_ipc_supported", 143, [](G) -> double { return 0; }},
    {"host_memory_pools_supported", 144, [](G) -> double { return 0; }},
    {"host_virtual_memory_management_supported", 145, [](G) -> double { return 0; }},
    {"host_alloc_dma_buf_supported", 146, [](G) -> double { return 0; }},
    {"only_partial_host_native_atomic_supported", 147, [](G) -> double { return 0; }},
};

}  // namespace

int attribute_number(const std::string& lower_case_name) {
  for (const Row& row : kRows)
    if (lower_case_name == row.name) return row.number;
  return -1;
}

bool attribute_default(const GpuDescription& gpu, int number, int* value) {
  const Row* row =
      std::find_if(std::begin(kRows), std::end(kRows), [&](const Row& r) { return r.number == number; });
  if (row == std::end(kRows)) return false;
  *value = int(std::min(row->value(gpu), 2147483647.0));
  return true;
}

}  // namespace tessera::profiles
