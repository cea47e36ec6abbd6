#include "cli/look/inspect.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/json_text.h"
#include "base/printable.h"
#include "base/user_file.h"
#include "kernels/ptx/parser.h"
#include "kernels/ptx/printer.h"

namespace tessera::cli {
namespace {

using nlohmann::json;

constexpr size_t kLargeFile = 64u << 20;  // takes long enough to show progress
constexpr const char* kKinds[] = {"ptx", "cubin", "other"};

// Source lines of PTX: .file gives names, .loc gives the line of the text behind it.
class SourceLines {
 public:
  explicit SourceLines(const ptx::Module& module) {
    for (const ptx::Item& item : module.items) {
      if (item.kind == ptx::Item::Kind::kRaw) file(item.text);
      here_ = {0, 0};
      if (item.kind == ptx::Item::Kind::kFunction) walk(item.function->body);
    }
  }
  // "name:line" of what stands at that PTX line; "" = not said.
  std::string at(uint32_t ptx_line) const {
    auto found = starts_.find(ptx_line);
    if (found == starts_.end()) return "";
    const auto& [file, line] = found->second;
    auto name = files_.find(file);
    return name == files_.end() ? "" : name->second + ":" + std::to_string(line);
  }

 private:
  void file(std::string_view text) {  // .file 1 "name" ...
    const size_t open = text.find('"'), close = text.find('"', open + 1);
    unsigned number = 0;
    if (!text.starts_with(".file") || close == std::string_view::npos) return;
    const size_t digit = text.find_first_of("0123456789");
    if (digit > open) return;
    std::from_chars(text.data() + digit, text.data() + open, number);
    files_[number] = text.substr(open + 1, close - open - 1);
  }
  void walk(const std::vector<ptx::Statement>& body) {
    for (const ptx::Statement& s : body) {
      if (s.kind == ptx::Statement::Kind::kScope) walk(s.scope);
      if (s.kind == ptx::Statement::Kind::kLoc) {  // .loc FILE LINE COLUMN
        const size_t digit = s.text.find_first_of("0123456789");
        if (digit == std::string_view::npos) continue;
        const char* end = s.text.data() + s.text.size();
        auto [rest, failed] = std::from_chars(s.text.data() + digit, end, here_.first);
        while (rest < end && *rest == ' ') ++rest;
        std::from_chars(rest, end, here_.second);
      }
      if (s.kind == ptx::Statement::Kind::kInstruction && s.instruction.at.line != 0 && here_.second != 0)
        starts_[s.instruction.at.line] = here_;
    }
  }
  std::map<unsigned, std::string> files_;
  std::map<uint32_t, std::pair<unsigned, unsigned>> starts_;  // PTX line -> file, line
  std::pair<unsigned, unsigned> here_ = {0, 0};
};

// "line 12: ..." of the slicer's details.
uint32_t line_of(const std::string& detail) {
  uint32_t line = 0;
  if (detail.starts_with("line ")) std::from_chars(detail.data() + 5, detail.data() + detail.size(), line);
  return line;
}

using Payload = std::span<const uint8_t>;

void look_into_ptx(const InspectOptions& options, Payload payload, InspectedEntry* out) {
  auto module = ptx::parse({reinterpret_cast<const char*>(payload.data()), payload.size()});
  if (!module.ok()) {
    out->problem = module.error().text;
    return;
  }
  slice::Options rules;
  rules.allow_order_dependent = options.allow_order_dependent;
  const SourceLines lines(*module);
  const slice::ModuleGlobals globals(*module);
  for (slice::KernelReport& report : slice::analyse(*module, rules)) {
    if (!options.kernel.empty() && report.kernel != options.kernel) continue;
    InspectedKernel k;
    k.source = lines.at(line_of(report.look_back.empty() ? report.verdict.detail : report.look_back));
    const std::string name = report.kernel;
    k.stability = slice::bit_stable_when_recompiled(*module, name);
    k.globals = globals.passed(name);
    k.width_obstacle = slice::width_obstacle(*module, name);
    k.report = std::move(report);
    out->kernels.push_back(std::move(k));
  }
  if (!options.emit_slice) return;
  slice::add_variants(*module, rules);
  const std::string text = ptx::print(*module);
  fwrite(text.data(), 1, text.size(), stdout);
}

void look_into_cubin(const InspectOptions& options, Payload payload, InspectedEntry* out) {
  auto kernels = image::cubin_kernels(payload);
  if (!kernels.ok()) {
    out->problem = kernels.error().text;
    return;
  }
  for (image::CubinKernel& k : *kernels)
    if (options.kernel.empty() || k.name == options.kernel) out->cubin_kernels.push_back(std::move(k));
}

InspectedEntry look_into(const InspectOptions& options, size_t part, const image::Entry& entry,
                         const base::Result<std::vector<uint8_t>>& payload) {
  InspectedEntry e;
  e.part = part;
  e.entry = entry;
  if (!payload.ok()) {
    e.problem = payload.error().text;
    return e;
  }
  e.bytes = payload->size();
  if (image::is_tile_ir(*payload)) e.problem = "CUDA Tile IR, which the driver compiles: it goes out whole";
  if (entry.kind == image::EntryKind::kPtx) look_into_ptx(options, *payload, &e);
  if (entry.kind == image::EntryKind::kCubin) look_into_cubin(options, *payload, &e);
  return e;
}

json as_json(const InspectedEntry& e) {
  json out = {
      {"part", e.part},
      {"kind", kKinds[size_t(e.entry.kind)]},
      {"target", target_of(e.entry)},
      {"version", std::to_string(e.entry.version_major) + "." + std::to_string(e.entry.version_minor)},
      {"compression", e.entry.compression},
      {"stored_bytes", e.entry.stored_bytes},
      {"bytes", e.bytes}};
  if (e.entry.relocatable) out["relocatable"] = true;
  if (!e.entry.options.empty()) out["options"] = e.entry.options;
  if (!e.problem.empty()) out["problem"] = e.problem;
  for (const InspectedKernel& k : e.kernels) {
    json row = {{"name", k.report.kernel},
                {"can_be_cut", k.report.verdict.may_cut()},
                {"param_bytes", k.report.param_bytes},
                {"registers", nullptr},  // known after compilation only
                {"order_dependent", k.report.order_dependent},
                {"clusters", k.report.clusters},
                {"bit_stable_when_recompiled", k.stability.stable()},
                {"uses_module_state", !k.globals.possible() || !k.globals.passed.empty()}};
    for (const slice::PassedVariable& v : k.globals.passed) row["passed_by_address"].push_back(v.name);
    if (!k.globals.possible()) {
      row["module_state"] = slice::obstacle_name(k.globals.obstacle);
      row["module_state_because"] = k.globals.detail;
    }
    if (!k.report.verdict.may_cut()) {
      row["refusal"] = slice::refusal_name(k.report.verdict.refusal);
      row["because"] = k.report.verdict.detail;
    }
    if (!k.report.look_back.empty()) row["look_back"] = k.report.look_back;
    row["width_can_be_shaped"] = k.width_obstacle.empty();
    if (!k.width_obstacle.empty()) row["width_because"] = k.width_obstacle;
    if (!k.source.empty()) row["source"] = k.source;
    if (!k.stability.stable()) row["unstable_because"] = k.stability.detail;
    out["kernels"].push_back(std::move(row));
  }
  for (const image::CubinKernel& k : e.cubin_kernels) {
    json row = {{"name", k.name},
                {"registers", k.registers},
                {"shared_bytes", k.shared_bytes},
                {"code_bytes", k.code_bytes},
                {"param_bytes", k.param_bytes},
                {"barriers", k.barriers},
                {"max_threads", k.max_threads},
                {"cluster", k.cluster},
                {"cluster_shape", k.cluster_shape},
                {"max_cluster_rank", k.max_cluster_rank},
                {"unknown_attributes", k.unknown_attributes}};
    // Blocks per multiprocessor by added dynamic shared memory, for the largest block that the code was made
    // for.
    if (k.max_threads != 0)
      for (const slice::WidthStep& step :
           slice::width_steps(slice::sm_limits(e.entry.sm), {k.max_threads, k.registers, k.shared_bytes}))
        row["widths"].push_back(
            {{"added_shared_bytes", step.added_shared_bytes}, {"blocks_per_sm", step.blocks}});
    for (const image::CubinParameter& p : k.parameters)
      row["parameters"].push_back({{"offset", p.offset}, {"bytes", p.bytes}});
    out["kernels"].push_back(std::move(row));
  }
  return out;
}

std::string cluster_text(const image::CubinKernel& k) {
  if (!k.cluster) return "";
  const auto& [x, y, z] = k.cluster_shape;
  if (x != 0)
    return ", clusters of " + std::to_string(x) + " x " + std::to_string(y) + " x " + std::to_string(z);
  return k.max_cluster_rank ? ", clusters of at most " + std::to_string(k.max_cluster_rank) + " blocks"
                            : ", clusters";
}

std::string unknown_text(const image::CubinKernel& k) {
  std::string out;
  for (const uint8_t code : k.unknown_attributes) {
    char hex[8];
    snprintf(hex, sizeof hex, " 0x%02x", code);
    out += hex;
  }
  return out.empty() ? "" : ", unknown attributes" + out;
}

std::string passed_text(const slice::PassedGlobals& globals) {
  std::string out;
  for (const slice::PassedVariable& v : globals.passed) out += " " + v.name;
  return out;
}

void print(const InspectedEntry& e) {
  printf("%s %s %u.%u, %llu bytes", kKinds[size_t(e.entry.kind)], target_of(e.entry).c_str(),
         e.entry.version_major, e.entry.version_minor, static_cast<unsigned long long>(e.bytes));
  if (strcmp(e.entry.compression, "none") != 0)
    printf(" (%s, %llu stored)", e.entry.compression, static_cast<unsigned long long>(e.entry.stored_bytes));
  puts(e.entry.relocatable ? ", relocatable: no driver takes it before it is linked (-rdc)" : "");
  if (!e.problem.empty()) printf("  cannot be looked into: %s\n", base::printable(e.problem).c_str());
  for (const InspectedKernel& k : e.kernels) {
    const slice::Verdict& v = k.report.verdict;
    const char* how = k.report.clusters ? "can be cut in whole clusters" : "can be cut";
    printf("  %s: %s\n", base::printable(k.report.kernel).c_str(), v.may_cut() ? how : "cannot be cut");
    if (!v.may_cut()) {
      printf("    %s: %s\n", slice::refusal_name(v.refusal), slice::refusal_text(v.refusal));
      printf("    %s%s%s\n", base::printable(v.detail).c_str(), k.source.empty() ? "" : "  at ",
             base::printable(k.source).c_str());
      continue;
    }
    if (!k.report.look_back.empty())
      printf("    in one row of blocks, ascending: %s%s%s\n", base::printable(k.report.look_back).c_str(),
             k.source.empty() ? "" : "  at ", base::printable(k.source).c_str());
    if (!k.globals.possible())
      printf("    beside machine code: no, %s: %s\n", slice::obstacle_text(k.globals.obstacle),
             base::printable(k.globals.detail).c_str());
    else if (!k.stability.stable())
      printf("    beside machine code: no, unless it is proved (tessera prepare): %s: %s\n",
             slice::instability_text(k.stability.reason), base::printable(k.stability.detail).c_str());
    else if (!k.globals.passed.empty())
      printf("    beside machine code: with the addresses of%s\n",
             base::printable(passed_text(k.globals)).c_str());
  }
  for (const image::CubinKernel& k : e.cubin_kernels)
    printf("  %s: %u registers, %llu bytes shared, %u bytes of parameters, %u barriers%s%s\n",
           base::printable(k.name).c_str(), k.registers, static_cast<unsigned long long>(k.shared_bytes),
           k.param_bytes, k.barriers, cluster_text(k).c_str(), unknown_text(k).c_str());
}

// {"file": ..., "entries": [...]} written entry by entry: all of a large library's would not fit into memory.
class JsonOutput {
 public:
  explicit JsonOutput(std::string file) : file_(std::move(file)) {}
  void add(const InspectedEntry& e) {
    printf("%s%s", n_++ == 0 ? head().c_str() : ",\n", base::json_text(as_json(e), 2).c_str());
  }
  void end() { printf("%s]}\n", n_ == 0 ? head().c_str() : ""); }
  bool begun() const { return n_ != 0; }

 private:
  std::string head() const { return "{\"file\": " + base::json_text(json(file_)) + ", \"entries\": [\n"; }
  std::string file_;
  size_t n_ = 0;
};

}  // namespace

std::string target_of(const image::Entry& e) {
  return "sm_" + std::to_string(e.sm) + (e.arch_specific ? "a" : e.family_specific ? "f" : "");
}

base::Status inspect_bytes(std::span<const uint8_t> bytes, const InspectOptions& options,
                           const std::function<void(const InspectedEntry&)>& each,
                           const std::function<void(double)>& progress) {
  auto parts = image::parts(bytes);
  if (!parts.ok()) return parts.error();
  uint64_t total = 0, before = 0;     // bytes of all parts, of those that are behind us
  std::optional<base::Error> unread;  // of an entry that does not load
  bool any_read = false;
  for (const Payload part : *parts) total += part.size();
  for (size_t i = 0; i < parts->size(); before += (*parts)[i++].size()) {
    auto entries = image::list((*parts)[i]);
    // One broken part of many is said; a file that is nothing else is an error.
    if (!entries.ok() && parts->size() == 1) return entries.error();
    if (!entries.ok() && entries.error().code == base::Code::kNotFound) continue;  // an empty container
    if (!entries.ok()) {
      InspectedEntry broken;
      broken.part = i;
      broken.problem = entries.error().text;
      each(broken);
      continue;
    }
    uint64_t done = before;
    for (const image::Entry& entry : *entries) {
      if (progress) progress(double(done) / double(total));
      done += entry.stored_bytes;
      const auto payload = image::load(entry);  // in memory for this entry only
      any_read = any_read || payload.ok();
      if (!payload.ok()) unread = payload.error();
      each(look_into(options, i, entry, payload));
    }
  }
  if (progress) progress(1);
  if (unread && !any_read) return *unread;
  return base::ok();
}

int inspect(const InspectOptions& options) {
  const auto fail = [&](const std::string& why) {
    fprintf(stderr, "tessera inspect: %s: %s\n", options.file.c_str(), why.c_str());
    return 1;
  };
  const auto fd = base::open_to_read(options.file);
  struct stat st;
  if (!fd) return fail(fd.error().text);
  if (fstat(fd->get(), &st) != 0) return fail(strerror(errno));
  if (st.st_size == 0) return fail("there is nothing in it");
  const size_t size = size_t(st.st_size);
  void* memory = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd->get(), 0);
  if (memory == MAP_FAILED) return fail(strerror(errno));
  if (!options.gpu.empty()) {
    const int status = inspect_on_gpu({static_cast<const uint8_t*>(memory), size}, options);
    munmap(memory, size);
    return status;
  }
  // On a terminal in one place, else a line for each tenth.
  const bool shows_progress = size > kLargeFile, terminal = isatty(2);
  int tenths = -1;
  const auto progress = [&](double share) {
    if (!shows_progress || (!terminal && int(share * 10) == tenths)) return;
    tenths = int(share * 10);
    fprintf(stderr, "%s%3.0f %%%s", terminal ? "\r" : "", share * 100, !terminal || share >= 1 ? "\n" : "");
  };
  size_t n_kernels = 0, n_cut = 0, n_found = 0;
  JsonOutput out(options.file);
  const base::Status done = inspect_bytes(
      {static_cast<const uint8_t*>(memory), size}, options,
      [&](const InspectedEntry& e) {
        n_kernels += e.kernels.size();
        n_found += e.kernels.size() + e.cubin_kernels.size();
        for (const InspectedKernel& k : e.kernels) n_cut += k.report.verdict.may_cut();
        if (options.emit_slice) return;
        if (options.json)
          out.add(e);
        else if (options.kernel.empty() || !e.kernels.empty() || !e.cubin_kernels.empty())
          print(e);
      },
      progress);
  munmap(memory, size);
  if (options.json && (done.ok() || out.begun())) out.end();
  if (!done.ok()) return fail(done.error().text);
  if (!options.kernel.empty() && n_found == 0) return fail("no kernel '" + options.kernel + "' in it");
  if (!options.json && !options.emit_slice)
    printf(
        "%zu kernels as PTX (registers and barriers are known after compilation), %zu of them can be cut\n",
        n_kernels, n_cut);
  return 0;
}

}  // namespace tessera::cli
