#include "kernels/ptx/scope.h"

#include <algorithm>

namespace tessera::ptx {
namespace {

constexpr Name kSpecial[] = {
    // sorted
    "%aggr_smem_size",
    "%clock",
    "%clock64",
    "%clock_hi",
    "%cluster_ctaid",
    "%cluster_ctarank",
    "%cluster_nctaid",
    "%cluster_nctarank",
    "%clusterid",
    "%ctaid",
    "%current_graph_exec",
    "%dynamic_smem_size",
    "%globaltimer",
    "%globaltimer_hi",
    "%globaltimer_lo",
    "%gridid",
    "%is_explicit_cluster",
    "%laneid",
    "%lanemask_eq",
    "%lanemask_ge",
    "%lanemask_gt",
    "%lanemask_le",
    "%lanemask_lt",
    "%nclusterid",
    "%nctaid",
    "%nsmid",
    "%ntid",
    "%nwarpid",
    "%reserved_smem_offset_begin",
    "%reserved_smem_offset_cap",
    "%reserved_smem_offset_end",
    "%smid",
    "%tid",
    "%total_smem_size",
    "%warpid",
};

bool digits(Name text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

bool is_special_register(Name name) {
  if (name.size() < 4 || name[0] != '%') return false;
  if (std::binary_search(std::begin(kSpecial), std::end(kSpecial), name)) return true;
  constexpr Name kNumbered[] = {"%envreg", "%pm", "%reserved_smem_offset_"};  // %pm0, %pm0_64, %envreg31
  for (Name prefix : kNumbered) {
    if (name.starts_with(prefix)) {
      Name rest = name.substr(prefix.size());
      if (prefix == "%pm" && rest.ends_with("_64")) rest.remove_suffix(3);
      return digits(rest);
    }
  }
  return false;
}

void Scopes::push() {
  marks_.push_back(undo_.size());
}

const Scopes::Object* Scopes::lookup(Name name) const {
  const size_t last = static_cast<uint8_t>(name.back()), first = static_cast<uint8_t>(name[name.size() / 2]);
  Recent& recent = recent_[(last * 5 + first * 3 + name.size()) % recent_.size()];
  if (recent.generation != generation_ || recent.name != name) {
    auto it = objects_.find(name);
    recent = {name, it == objects_.end() ? nullptr : &it->second, generation_};
  }
  return recent.object;
}

void Scopes::pop() {
  ++generation_;
  size_t mark = marks_.back();
  marks_.pop_back();
  while (undo_.size() > mark) {
    Undo& undo = undo_.back();
    if (undo.existed)
      objects_[undo.name] = undo.before;
    else
      objects_.erase(undo.name);
    undo_.pop_back();
  }
}

bool Scopes::declare(const Variable& variable) {
  ++generation_;
  auto [it, fresh] = objects_.try_emplace(variable.name);
  Object& object = it->second;
  if (!marks_.empty()) undo_.push_back({variable.name, object, !fresh});
  bool clash = !fresh && object.depth == depth() && (variable.count ? object.count > 0 : object.single);
  if (!fresh && object.depth != depth())
    object.single = object.single && variable.count != 0;  // hidden by the inner one
  object.depth = depth();
  if (variable.count != 0) {
    object.count = variable.count;
    object.range_type = variable.type;
    object.range_space = variable.space;
    object.range_serial = ++serial_;
  } else {
    object.single = true;
    object.type = variable.type;
    object.vector = variable.vector;
    object.space = variable.space;
    object.serial = ++serial_;
    Name prefix = variable.name;
    while (prefix.size() > 1 && prefix.back() >= '0' && prefix.back() <= '9') {
      prefix.remove_suffix(1);
      if (auto range = objects_.find(prefix); range != objects_.end()) range->second.overlap = true;
    }
  }
  return !clash;
}

bool Scopes::find(Name name, Found* found) const {
  if (name.empty()) return false;
  // The usual register, %r12, splits before its last run of digits.
  size_t split = name.size();
  while (split > 1 && name[split - 1] >= '0' && name[split - 1] <= '9') --split;
  for (; split < name.size(); ++split) {
    Name number = name.substr(split);
    if ((number.size() > 1 && number[0] == '0') || number.size() > 9) continue;
    const Object* range = lookup(name.substr(0, split));
    if (!range || range->count == 0) continue;
    uint32_t index = 0;
    for (char c : number) index = index * 10 + static_cast<uint32_t>(c - '0');
    if (index >= range->count) continue;
    *found = {range->range_space, range->range_type, 1, (uint64_t{range->range_serial} << 32) | index};
    const Object* exact = range->overlap ? lookup(name) : nullptr;
    if (exact && exact->single && exact->depth > range->depth)
      *found = {exact->space, exact->type, exact->vector, uint64_t{exact->serial} << 32};
    return true;
  }
  const Object* single = lookup(name);
  if (!single || !single->single) return false;
  *found = {single->space, single->type, single->vector, uint64_t{single->serial} << 32};
  return true;
}

}  // namespace tessera::ptx
