#include <algorithm>
#include <cctype>

#include "kernels/ptx/verifier.h"
#include "kernels/slice/internal.h"

namespace tessera::slice {
namespace {

// S9: kernels of multi-GPU collectives wait for other processes and must run whole. That they wait is seen in
// what they do (S4); these libraries are known to, whatever their kernels look like. Lower case, parts of
// names. What an algorithm calls itself (all-reduce of a block's bits) says nothing.
constexpr ptx::Name kCollectives[] = {"nccl", "nvshmem", "userbuffers", "cross_device_reduce"};

bool is_collective(ptx::Name name) {
  std::string lower(name);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return std::any_of(std::begin(kCollectives), std::end(kCollectives),
                     [&](ptx::Name part) { return lower.find(part) != std::string::npos; });
}

Verdict judge(const ptx::Module& module, const ptx::Function& entry, const FunctionFacts& facts,
              Closure& closure, KernelReport* report, const Options& options) {
  if (is_collective(entry.name)) return refuse(Refusal::kCollective, "by name");
  auto functions = reached(facts);
  Verdict order;
  for (const FunctionFacts* f : functions) {
    report->clusters |= f->clusters;
    if (order.may_cut() && !f->order.may_cut()) order = f->order;
  }
  report->order_dependent = !order.may_cut();
  for (const FunctionFacts* f : functions) {
    if (f->recursive)
      return refuse(Refusal::kTooComplex, "'" + std::string(f->function->name) + "' calls itself");
    if (!f->own.may_cut()) return f->own;
    if (Verdict placement = check_placement(*f, closure); !placement.may_cut()) return placement;
  }
  uint64_t limit = param_limit_bytes(module);
  if (report->origin_offset + sizeof(SliceOrigin) > limit) {
    return refuse(Refusal::kParamLimit,
                  std::to_string(report->param_bytes) + " of " + std::to_string(limit) + " bytes are taken");
  }
  Verdict lower;  // if nothing else waits
  for (const FunctionFacts* f : functions) {
    Verdict waiting = check_waiting(*f, closure);
    if (waiting.refusal == Refusal::kLowerBlockWait && report->clusters)
      waiting.refusal = Refusal::kInterBlockWait;  // look-back takes shared memory for the block's own
    if (waiting.refusal == Refusal::kLowerBlockWait)
      lower = lower.may_cut() ? waiting : lower;
    else if (!waiting.may_cut())
      return waiting;
  }
  report->look_back = lower.detail;
  report->order_dependent |= !lower.may_cut();  // where a block stops looking back is a matter of time
  if (options.allow_order_dependent) return {};
  return lower.may_cut() ? order : lower;
}

}  // namespace

KernelReport analyse_entry(const ptx::Module& module, const ptx::Function& entry, Closure& closure,
                           const Options& options) {
  KernelReport report;
  report.kernel = entry.name;
  ParamLayout layout = layout_params(entry);
  report.origin_offset = static_cast<uint32_t>(layout.origin_offset);
  report.param_bytes = report.origin_offset;
  report.n_params = static_cast<uint32_t>(entry.params.size());
  const FunctionFacts* facts = closure.facts(entry.name);
  if (!facts) {
    report.verdict = refuse(Refusal::kIndirectCall, "the kernel is only declared here");
    return report;
  }
  report.verdict = judge(module, entry, *facts, closure, &report, options);
  return report;
}

std::vector<KernelReport> analyse(const ptx::Module& module, const Options& options) {
  Closure closure(module);
  return analyse_module(module, closure, options);
}

std::vector<KernelReport> analyse_module(const ptx::Module& module, Closure& closure,
                                         const Options& options) {
  std::vector<KernelReport> reports;
  base::Status valid = ptx::verify(module);
  for (const ptx::Item& item : module.items) {
    if (item.kind != ptx::Item::Kind::kFunction || !item.function->is_entry || !item.function->has_body ||
        item.function->name.ends_with(kVariantSuffix))
      continue;
    if (valid.ok()) {
      reports.push_back(analyse_entry(module, *item.function, closure, options));
      continue;
    }
    KernelReport report;
    report.kernel = item.function->name;
    report.verdict = refuse(Refusal::kTooComplex, "the module is not well-formed: " + valid.error().text);
    reports.push_back(std::move(report));
  }
  return reports;
}

}  // namespace tessera::slice
