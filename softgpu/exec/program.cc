// Program::load: module variables get memory, every entry is decoded together with the functions it can
// reach. An entry that reaches what is not supported is refused alone.
#include <algorithm>
#include <bit>
#include <cstdlib>
#include <set>

#include "kernels/ptx/cursor.h"
#include "kernels/ptx/expression.h"
#include "softgpu/exec/decode.h"

namespace tessera::softgpu::exec {
namespace {

constexpr uint32_t kStackForCalls =
    16384;  // bytes of local memory for recursion and indirect calls, per thread

struct GlobalMemory {
  uint64_t address = 0, bytes = 0;
};

std::string_view trim(std::string_view s) {
  while (!s.empty() && (s.front() == ' ' || s.front() == '\n' || s.front() == '\t' || s.front() == '\r'))
    s.remove_prefix(1);
  while (!s.empty() && (s.back() == ' ' || s.back() == '\n' || s.back() == '\t' || s.back() == '\r'))
    s.remove_suffix(1);
  return s;
}

class ProgramImpl final : public Program {
 public:
  ProgramImpl(AllocationMap& memory, uint32_t max_registers)
      : memory_(memory), max_registers_(max_registers) {}
  ~ProgramImpl() override {
    for (auto& [name, g] : globals_) {
      memory_.remove(g.address);
      std::free(reinterpret_cast<void*>(g.address));
    }
  }

  base::Status build(const ptx::Module& module);

  const Kernel* kernel(const std::string& name) const override {
    auto it = kernels_.find(name);
    return it == kernels_.end() ? nullptr : it->second.get();
  }
  const KernelInfo& info(const Kernel& kernel) const override { return kernel.info; }
  std::vector<std::string> kernel_names() const override {
    std::vector<std::string> names;
    for (auto& [name, kernel] : kernels_) names.push_back(name);
    return names;
  }
  const std::map<std::string, std::string>& refused() const override { return refused_; }
  bool symbol(const std::string& name, Symbol* symbol) const override {
    auto it = globals_.find(name);
    if (it == globals_.end()) return false;
    *symbol = Symbol{it->second.address, it->second.bytes};
    return true;
  }
  std::vector<std::string> symbol_names() const override {
    std::vector<std::string> names;
    for (auto& [name, g] : globals_) names.push_back(name);
    return names;
  }
  Fault run(const Kernel& kernel, const Launch& launch, unsigned threads, Work* work, Progress* progress,
            const std::atomic<bool>* cancel) override {
    return run_grid(kernel, memory_, launch, threads, work, progress, cancel);
  }

 private:
  base::Status place_globals(const ptx::Module& module);
  base::Status initialise(const ptx::Variable& v, char* to);
  base::Status element(const ptx::Variable& v, std::string_view text, unsigned bytes, char* to);
  base::Status build_kernel(const ptx::Function& f);

  AllocationMap& memory_;
  const uint32_t max_registers_;  // per thread
  ModuleSymbols symbols_;
  std::map<std::string, GlobalMemory> globals_;
  std::map<std::string, std::unique_ptr<Kernel>> kernels_;
  std::map<std::string, std::string> refused_;
  std::vector<char> function_addresses_;  // one byte per function: its address is the function's
};

base::Status ProgramImpl::element(const ptx::Variable& v, std::string_view text, unsigned bytes, char* to) {
  const auto bad = [&](const char* why) {
    return base::error(base::Code::kUnsupported, "line " + std::to_string(v.at.line) + ": initialiser of " +
                                                     std::string(v.name) + ": " + why + ": " +
                                                     std::string(text));
  };
  text = trim(text);
  if (text.empty()) return bad("empty element");
  uint64_t bits = 0;
  std::string_view symbol = text;
  bool generic = false;
  if (symbol.starts_with("generic(") && symbol.find(')') != symbol.npos) {
    generic = true;
    const size_t close = symbol.find(')');
    const std::string_view rest = symbol.substr(close + 1);
    symbol = trim(symbol.substr(8, close - 8));
    if (!trim(rest).empty()) {
      ptx::Constant offset;
      ptx::Cursor cursor(rest.substr(rest.find_first_not_of(" +")));
      if (!ptx::constant_expression(cursor, &offset) || !offset.known) return bad("offset is not understood");
      bits = offset.bits;
    }
  }
  const size_t plus = generic ? symbol.npos : symbol.find('+');
  const std::string_view name = trim(symbol.substr(0, plus));
  const auto data = symbols_.data.find(name);
  const auto function = symbols_.functions.find(name);
  if (data != symbols_.data.end() || function != symbols_.functions.end()) {
    bits += data != symbols_.data.end() ? data->second : function->second;
    if (plus != symbol.npos) {
      ptx::Constant offset;
      ptx::Cursor cursor(symbol.substr(plus + 1));
      if (!ptx::constant_expression(cursor, &offset) || !offset.known) return bad("offset is not understood");
      bits += offset.bits;
    }
  } else if (text.find_first_of(".fFdD") != text.npos && !text.starts_with("0x") && !text.starts_with("0X")) {
    bool is_f64 = false;
    const bool minus = text.front() == '-';
    if (!ptx::float_value(minus ? text.substr(1) : text, &bits, &is_f64))
      return bad("is no number or known symbol");
    if (minus) bits ^= is_f64 ? uint64_t{1} << 63 : uint64_t{1} << 31;
    if (is_f64 && bytes == 4) bits = std::bit_cast<uint32_t>(static_cast<float>(std::bit_cast<double>(bits)));
    if (!is_f64 && bytes == 8)
      bits = std::bit_cast<uint64_t>(static_cast<double>(std::bit_cast<float>(static_cast<uint32_t>(bits))));
  } else {
    ptx::Constant value;
    ptx::Cursor cursor(text);
    if (!ptx::constant_expression(cursor, &value) || !value.known) return bad("is no number or known symbol");
    bits = value.bits;
  }
  std::memcpy(to, &bits, bytes);
  return base::ok();
}

base::Status ProgramImpl::initialise(const ptx::Variable& v, char* to) {
  std::string_view text = trim(v.initializer);
  if (text.empty()) return base::ok();
  const unsigned bytes = ptx::type_bytes(v.type);
  const uint64_t total = v.size_bytes();
  if (text.front() != '{') return element(v, text, bytes, to);
  // Flattened list: inner braces start at multiples of their row's size.
  uint64_t offset = 0;
  std::vector<uint64_t> row_start;
  std::vector<uint64_t> row_bytes;  // size of one item at each depth
  row_bytes.push_back(total);
  for (uint64_t dim : v.dims) row_bytes.push_back(row_bytes.back() / std::max<uint64_t>(dim, 1));
  size_t at = 0;
  while (at < text.size()) {
    const char c = text[at];
    if (c == '{') {
      row_start.push_back(offset);
      ++at;
    } else if (c == '}') {
      const size_t depth = row_start.size() - 1;
      if (depth > 0 && depth < row_bytes.size()) offset = row_start.back() + row_bytes[depth];
      row_start.pop_back();
      ++at;
    } else if (c == ',' || c == ' ' || c == '\n' || c == '\t' || c == '\r') {
      ++at;
    } else {
      const size_t end = std::min(text.find_first_of(",{}", at), text.size());
      if (offset + bytes > total)
        return base::error(base::Code::kInvalid, "line " + std::to_string(v.at.line) +
                                                     ": too many initialisers of " + std::string(v.name));
      base::Status s = element(v, text.substr(at, end - at), bytes, to + offset);
      if (!s.ok()) return s;
      offset += bytes;
      at = end;
    }
  }
  return base::ok();
}

base::Status ProgramImpl::place_globals(const ptx::Module& module) {
  std::vector<const ptx::Variable*> placed;
  for (const ptx::Item& item : module.items) {
    if (item.kind == ptx::Item::Kind::kFunction) {
      function_addresses_.push_back(0);
      continue;
    }
    if (item.kind != ptx::Item::Kind::kVariable) continue;
    const ptx::Variable& v = item.variable;
    if (v.space == ptx::Space::kShared) symbols_.shared[v.name] = &v;
    if (v.space != ptx::Space::kGlobal && v.space != ptx::Space::kConst) continue;
    const uint64_t bytes = v.size_bytes();
    if (v.linkage == ".extern" || bytes == 0) continue;
    if (bytes > (uint64_t{1} << 36))
      return base::error(base::Code::kExhausted,
                         "variable " + std::string(v.name) + " is larger than 64 GiB");
    const uint64_t alignment = std::max<uint64_t>(std::bit_ceil(uint64_t{v.align}), kGlobalGranuleBytes);
    const uint64_t rounded = (bytes + alignment - 1) / alignment * alignment;
    void* p = std::aligned_alloc(alignment, rounded);
    if (!p) return base::error(base::Code::kExhausted, "no memory for variable " + std::string(v.name));
    std::memset(p, 0, rounded);
    const uint64_t address = reinterpret_cast<uint64_t>(p);
    globals_[std::string(v.name)] = GlobalMemory{address, bytes};
    symbols_.data[v.name] = address;
    if (v.space == ptx::Space::kConst) symbols_.constant_bytes[v.name] = bytes;
    // On hardware constants are protected by having no stores of their own alone.
    const bool constant = v.space == ptx::Space::kConst;
    const bool writable = !constant || memory_.bounds() == AllocationMap::Bounds::kHardware;
    memory_.add(address, bytes, writable, kGlobalGranuleBytes, constant);
    placed.push_back(&v);
  }
  size_t n = 0;
  for (const ptx::Item& item : module.items)
    if (item.kind == ptx::Item::Kind::kFunction) {
      // A declaration and its definition are one function.
      symbols_.functions.try_emplace(item.function->name,
                                     reinterpret_cast<uint64_t>(&function_addresses_[n]));
      ++n;
    }
  for (const ptx::Variable* v : placed) {
    base::Status s = initialise(*v, reinterpret_cast<char*>(symbols_.data[v->name]));
    if (!s.ok()) return s;
  }
  return base::ok();
}

// Deepest local memory of a call chain; *cycle if the graph recurses.
uint32_t deepest(const std::map<std::string, Code*>& codes, const Code& code, std::set<std::string>& path,
                 bool* cycle, std::map<const Code*, uint32_t>& known) {
  if (auto it = known.find(&code); it != known.end()) return it->second;
  if (!path.insert(code.name).second) {
    *cycle = true;
    return 0;
  }
  uint32_t below = 0;
  for (const CallSite& site : code.calls)
    if (site.builtin == Builtin::kNone && !site.name.empty())
      below = std::max(below, deepest(codes, *codes.at(site.name), path, cycle, known));
  path.erase(code.name);
  return known[&code] = code.frame_bytes + below;
}

base::Status ProgramImpl::build_kernel(const ptx::Function& f) {
  auto kernel = std::make_unique<Kernel>();
  KernelInfo& info = kernel->info;
  info.name = std::string(f.name);
  uint32_t most_registers = max_registers_;
  for (const ptx::Directive& d : f.directives) {
    info.explicit_cluster |= d.name == ".explicitcluster";
    if (d.name == ".reqnctapercluster")
      for (size_t k = 0; k < 3; ++k)
        info.required_cluster[k] = k < d.values.size() ? static_cast<uint32_t>(d.values[k]) : 1;
    if (d.name == ".maxnreg" && !d.values.empty() && d.values[0])
      most_registers = std::min(most_registers, static_cast<uint32_t>(std::min<uint64_t>(d.values[0], 255)));
    if (d.name != ".maxntid" && d.name != ".reqntid") continue;
    uint64_t product = 1;
    for (uint64_t value : d.values) product *= value;
    info.max_threads_per_block = static_cast<uint32_t>(std::min<uint64_t>(product, 1024));
    if (d.name == ".reqntid")
      for (size_t k = 0; k < 3; ++k)
        info.required_block[k] = k < d.values.size() ? static_cast<uint32_t>(d.values[k]) : 1;
  }
  KernelLayout layout;
  layout.symbols = &symbols_;
  std::map<std::string, Code*> codes;
  const auto decode = [&](const ptx::Function& function, KernelInfo* entry) -> base::Status {
    auto code = std::make_unique<Code>();
    Decoder decoder(function, layout, entry, *code);
    if (!decoder.run())
      return base::error(base::Code::kUnsupported, "kernel " + info.name + ": " + decoder.error());
    if (!entry) codes[std::string(function.name)] = code.get();
    kernel->codes.push_back(std::move(code));
    return base::ok();
  };
  base::Status s = decode(f, &info);
  if (!s.ok()) return s;
  bool all_functions = false;
  for (size_t next = 0;;) {
    if (next < layout.callees.size()) {
      const std::string name = layout.callees[next++];
      if (codes.count(name)) continue;
      s = decode(*symbols_.module->find(name), nullptr);
      if (!s.ok()) return s;
    } else if (layout.indirect && !all_functions) {
      all_functions = true;
      for (const ptx::Item& item : symbols_.module->items)
        if (item.kind == ptx::Item::Kind::kFunction && !item.function->is_entry && item.function->has_body)
          layout.callees.push_back(std::string(item.function->name));
    } else {
      break;
    }
  }
  for (auto& code : kernel->codes)
    for (CallSite& site : code->calls)
      if (site.builtin == Builtin::kNone && !site.name.empty()) site.callee = codes.at(site.name);
  if (layout.indirect)
    for (auto& [name, code] : codes) kernel->by_address[symbols_.functions.at(name)] = code;
  bool cycle = false;
  std::set<std::string> path;
  std::map<const Code*, uint32_t> known;
  uint32_t local = deepest(codes, *kernel->codes[0], path, &cycle, known);
  kernel->recursive = cycle || layout.indirect;
  if (kernel->recursive) {
    uint32_t sum = 0;
    for (auto& code : kernel->codes) sum += code->frame_bytes;
    local = sum + kStackForCalls;
  }
  info.local_bytes = local;
  info.static_shared_bytes = layout.static_shared_bytes;
  for (std::string_view name : layout.constants)
    info.constant_bytes += static_cast<uint32_t>(symbols_.constant_bytes.at(name));
  const uint32_t align = std::max(layout.dynamic_align, 16u);
  kernel->dynamic_shared_offset = (layout.static_shared_bytes + align - 1) / align * align;
  kernel->reserves_shared = layout.reserves_shared;
  uint32_t registers = 0;
  for (auto& code : kernel->codes) registers = std::max(registers, code->live_registers);
  info.registers = std::min(std::clamp(registers + 4, 16u, 255u), most_registers);
  kernels_[info.name] = std::move(kernel);
  return base::ok();
}

base::Status ProgramImpl::build(const ptx::Module& module) {
  if (module.address_bits != 64)
    return base::error(base::Code::kUnsupported,
                       ".address_size 32 is not supported by the software GPU; compile for 64 bits");
  if (!shared_window())
    return base::error(base::Code::kExhausted, "no address space for the shared and local windows");
  symbols_.module = &module;
  base::Status s = place_globals(module);
  if (!s.ok()) return s;
  for (const ptx::Item& item : module.items) {
    if (item.kind != ptx::Item::Kind::kFunction || !item.function->is_entry || !item.function->has_body)
      continue;
    s = build_kernel(*item.function);
    if (!s.ok() && s.error().code != base::Code::kUnsupported) return s;
    if (!s.ok()) refused_[std::string(item.function->name)] = s.error().text;
  }
  symbols_ = ModuleSymbols{};  // its views die with the module
  return base::ok();
}

}  // namespace

base::Result<std::unique_ptr<Program>> Program::load(const ptx::Module& module, AllocationMap& memory,
                                                     uint32_t max_registers) {
  auto program = std::make_unique<ProgramImpl>(memory, max_registers);
  base::Status s = program->build(module);
  if (!s.ok()) return s.error();
  return std::unique_ptr<Program>(std::move(program));
}

}  // namespace tessera::softgpu::exec
