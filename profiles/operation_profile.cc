#include "profiles/operation_profile.h"

#include <errno.h>
#include <string.h>

#include <algorithm>
#include <fstream>

#include "base/user_file.h"
#include "operations/catalogue.h"
#include "operations/roofline.h"
#include "operations/table.h"

namespace tessera::profiles {
namespace {

using base::Code;
using operations::Entry;
using operations::TableHeader;
using operations::TableSlot;
using operations::Type;

uint64_t sum(uint64_t x, uint64_t y) {
  uint64_t result = 0;
  return __builtin_add_overflow(x, y, &result) ? UINT64_MAX : result;
}
uint64_t product(uint64_t x, uint64_t y) {
  uint64_t result = 0;
  return __builtin_mul_overflow(x, y, &result) ? UINT64_MAX : result;
}

operations::Peaks peaks_of(const GpuDescription& gpu) {
  const GpuDescription::Peak& p = gpu.peak;
  return {p.fp64, p.tensor_fp64, p.fp32, p.tensor_tf32, p.fp16, p.tensor_fp16, p.tensor_fp8, p.tensor_int8};
}

Class class_of(ipc::abi::ResourceClass resource_class) {
  if (resource_class == ipc::abi::kResourceCompute) return Class::kCompute;
  return resource_class == ipc::abi::kResourceMemory ? Class::kMemory : Class::kUnknown;
}

// "f16"; "f16,f16,f32"; "f32 as tf32" where another type than A's decides which pipe computes.
std::string type_text(const TableSlot& slot) {
  const auto& types = slot.types;
  const auto name = [](int32_t type) { return std::string(operations::name_of(static_cast<Type>(type))); };
  std::string text = name(types[0]);
  if (types[0] != types[1] || types[1] != types[2]) text += "," + name(types[1]) + "," + name(types[2]);
  return slot.computed_as == types[0] ? text : text + " as " + name(slot.computed_as);
}

std::string shape_text(const TableSlot& slot) {
  operations::Shape shape;
  std::ranges::copy(slot.dims, shape.dims);
  shape.count = slot.count;
  shape.n_dims = slot.n_dims;
  char text[operations::kShapeTextBytes];
  return std::string(operations::shape_text(Entry(slot.entry), shape, text));
}

bool is_sane(const TableSlot& slot) {
  return slot.entry < operations::kEntries && slot.n_dims <= operations::kMostDims && slot.count >= 0 &&
         std::ranges::all_of(slot.dims, [](int64_t dim) { return dim >= 0; });
}

OperationKey key_of(const TableSlot& slot) {
  return {std::string(operations::name_of(Entry(slot.entry))), shape_text(slot), type_text(slot)};
}

OperationProfile record_of(const TableSlot& slot, const GpuDescription* gpu) {
  OperationProfile out;
  out.calls = slot.calls;
  out.flop = product(slot.calls, slot.flop);
  out.bytes = product(slot.calls, slot.bytes);
  if (!gpu) return out;
  const operations::Rates rates =
      operations::rates_for(static_cast<Type>(slot.computed_as), peaks_of(*gpu), gpu->memory.bytes_per_s);
  const operations::Roofline roof = operations::roofline({slot.flop, slot.bytes}, rates);
  out.bound = class_of(roof.resource_class);
  out.at_least_ns = roof.at_least_ns * double(slot.calls);
  return out;
}

}  // namespace

std::string element_type_name(int32_t type) {
  return std::string(operations::name_of(static_cast<Type>(type)));
}

void merge(OperationProfile& into, const OperationProfile& from) {
  into.calls = sum(into.calls, from.calls);
  into.flop = sum(into.flop, from.flop);
  into.bytes = sum(into.bytes, from.bytes);
  into.at_least_ns += from.at_least_ns;
  into.gpu_ns += from.gpu_ns;
  if (from.bound != Class::kUnknown) into.bound = from.bound;
}

void add_launch(Launches& launches, uint64_t tag, double gpu_ns) {
  if (tag == 0) return;
  LaunchesBelow& below = launches[tag & ~operations::kTagOfNode];
  below.gpu_ns += gpu_ns;
  below.calls += (tag & operations::kTagOfNode) != 0;
}

base::Status make_operation_table(const std::string& path) {
  TableHeader header{};
  memcpy(header.magic, operations::kTableMagic, sizeof header.magic);
  header.version = operations::kTableVersion;
  header.slots = operations::kTableSlots;
  // Written in full: a hole that found no room on the disk would be a signal in the program.
  const std::string slots(operations::kTableBytes - sizeof header, '\0');
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(reinterpret_cast<const char*>(&header), sizeof header);
  file.write(slots.data(), std::streamsize(slots.size()));
  file.close();
  if (file) return base::ok();
  return base::error(Code::kUnavailable, "cannot write " + path + ": " + strerror(errno));
}

base::Result<OperationCounts> parse_operation_table(std::string_view bytes, const std::string& path,
                                                    const GpuDescription* gpu, const Launches& launches) {
  TableHeader header;
  if (bytes.size() != operations::kTableBytes)
    return base::error(Code::kInvalid, path + ": has " + std::to_string(bytes.size()) + " bytes, not " +
                                           std::to_string(operations::kTableBytes));
  memcpy(&header, bytes.data(), sizeof header);
  if (memcmp(header.magic, operations::kTableMagic, sizeof header.magic) != 0 ||
      header.version != operations::kTableVersion || header.slots != operations::kTableSlots)
    return base::error(Code::kInvalid, path + ": is no table of operations of this release");
  OperationCounts out;
  out.further_calls = header.further_calls;
  for (uint32_t i = 0; i < operations::kTableSlots; i++) {
    TableSlot slot;
    memcpy(&slot, bytes.data() + sizeof header + i * sizeof slot, sizeof slot);
    if (slot.state != operations::kSlotReady)
      continue;  // one that is being written belongs to a killed process
    if (!is_sane(slot))
      return base::error(Code::kInvalid, path + ": slot " + std::to_string(i) + " is garbled");
    const auto below = launches.find(i + 1);
    if (below != launches.end()) slot.calls = sum(slot.calls, below->second.calls);
    if (slot.calls == 0) continue;
    OperationProfile record = record_of(slot, gpu);
    if (below != launches.end()) record.gpu_ns = below->second.gpu_ns;
    auto [at, added] = out.operations.try_emplace(key_of(slot), record);
    if (!added) merge(at->second, record);
  }
  return out;
}

base::Result<OperationCounts> read_operation_table(const std::string& path, const GpuDescription* gpu,
                                                   const Launches& launches) {
  constexpr uint64_t kMostBytes = uint64_t(1) << 30;
  const auto bytes = base::read_user_file(path, kMostBytes);
  if (!bytes) return bytes.error();
  return parse_operation_table(*bytes, path, gpu, launches);
}

}  // namespace tessera::profiles
