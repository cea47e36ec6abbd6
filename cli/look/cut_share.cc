#include "cli/look/cut_share.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "cli/look/inspect.h"
#include "kernels/cache/proved.h"
#include "kernels/image/cubin.h"
#include "kernels/image/image.h"
#include "kernels/image/origin.h"
#include "kernels/image/vendor.h"
#include "kernels/ptx/parser.h"
#include "kernels/slice/globals.h"
#include "kernels/slice/slice.h"
#include "kernels/slice/stability.h"

namespace tessera::cli {
namespace {

using Entries = std::vector<image::Entry>;
using Outcomes = std::map<std::string, CutOutcome>;  // by kernel

std::string_view text_of(const std::vector<uint8_t>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

CutOutcome by_rule(const slice::KernelReport& k) {
  if (k.verdict.may_cut()) return CutOutcome::kCut;
  const bool order = k.verdict.refusal == slice::Refusal::kOrderDependent ||
                     k.verdict.refusal == slice::Refusal::kLowerBlockWait;
  return order ? CutOutcome::kOrder : CutOutcome::kRule;
}

// Outcomes for the kernels of a PTX text. A variant beside machine code is compiled on its own (docs/slicing.md, "Where
// the variant lives").
base::Result<Outcomes> outcomes_of(const image::Entry& ptx, const std::vector<uint8_t>* machine_code,
                                   const CutShareOptions& options) {
  auto text = image::load(ptx);
  if (!text) return text.error();
  auto module = ptx::parse(text_of(*text));
  if (!module) return module.error();
  std::set<std::string> proved;
  std::string problem;
  if (machine_code != nullptr)
    for (const cache::ProvedVariant& v :
         cache::find_proved(text_of(*text), text_of(*machine_code),
                            options.cache != nullptr ? *options.cache : cache::Store("", 0), &problem))
      proved.insert(v.kernel);
  const slice::ModuleGlobals globals(*module);
  Outcomes out;
  for (const slice::KernelReport& k :
       slice::analyse(*module, {.allow_order_dependent = options.allow_order_dependent})) {
    CutOutcome outcome = by_rule(k);
    if (outcome == CutOutcome::kCut && machine_code != nullptr && !proved.contains(k.kernel)) {
      if (!globals.passed(k.kernel).possible())
        outcome = CutOutcome::kState;
      else if (!options.relaxed && !slice::bit_stable_when_recompiled(*module, k.kernel).stable())
        outcome = CutOutcome::kBits;
    }
    out[k.kernel] = outcome;
  }
  return out;
}

// Machine code without a source that could be compiled here: is there none, or only for newer GPUs, or is it
// another's?
CutOutcome without_source(const Entries& entries, const CutShareOptions& options) {
  bool any = false, any_usable = false;
  for (const image::Entry& e : entries) {
    if (e.kind != image::EntryKind::kPtx) continue;
    any = true;
    any_usable = any_usable || e.sm <= options.sm;
  }
  if (!any) return CutOutcome::kMachineCode;
  return any_usable ? CutOutcome::kNoSource : CutOutcome::kNewerPtx;
}

// Sums the outcomes of the parts of one file.
class Sum {
 public:
  Sum(const CutShareOptions& options, Entries unit_texts)
      : options_(options),
        vendor_(image::vendor_library(options.file_name)),
        unit_texts_(std::move(unit_texts)) {}

  void add(const Entries& entries) {
    const image::Entry* chosen = image::choose(entries, options_.sm);
    if (chosen == nullptr) return add_foreign(entries);
    if (chosen->kind == image::EntryKind::kPtx) return add_text(entries, *chosen);
    add_code(entries, *chosen);
  }
  void unread(const std::string& why) { share_.unread.push_back(why); }
  CutShare take() {
    share_.not_for_gpu.assign(foreign_.begin(), foreign_.end());
    return std::move(share_);
  }

 private:
  void count(const std::string& kernel, CutOutcome outcome) {
    if (vendor_) outcome = CutOutcome::kVendor;
    share_.kernels.push_back({kernel, outcome});
    share_.counts[size_t(outcome)]++;
  }
  void add_foreign(const Entries& entries) {
    for (const image::Entry& e : entries)
      if (e.kind != image::EntryKind::kOther)
        foreign_.insert((e.kind == image::EntryKind::kPtx ? "PTX for " : "machine code for ") + target_of(e));
  }
  void add_text(const Entries& entries, const image::Entry& chosen) {
    const auto of_one_target = std::ranges::count_if(entries, [&](const image::Entry& e) {
      return e.kind == chosen.kind && e.sm == chosen.sm && e.arch_specific == chosen.arch_specific &&
             e.family_specific == chosen.family_specific;
    });
    auto outcomes = outcomes_of(chosen, nullptr, options_);
    if (!outcomes) return unread(outcomes.error().text);
    // Translation units that the driver links: one of them is not the module.
    for (const auto& [kernel, outcome] : *outcomes)
      count(kernel, of_one_target > 1 ? CutOutcome::kNoSource : outcome);
  }
  void add_code(const Entries& entries, const image::Entry& chosen) {
    auto code = image::load(chosen);
    auto kernels =
        code ? image::cubin_kernels(*code) : base::Result<std::vector<image::CubinKernel>>(code.error());
    if (!kernels) return unread(kernels.error().text);
    if (kernels->empty()) return;  // the stub of a device link
    Entries texts = entries;
    const bool has_text = without_source(entries, options_) != CutOutcome::kMachineCode;
    if (!has_text) texts.insert(texts.end(), unit_texts_.begin(), unit_texts_.end());
    const image::Entry* source = image::source_of(texts, chosen, *code);
    std::optional<Outcomes> known;
    if (source != nullptr && source->sm <= options_.sm) {
      auto outcomes = outcomes_of(*source, &*code, options_);
      if (outcomes)
        known = std::move(*outcomes);
      else
        unread(outcomes.error().text);
    }
    for (const image::CubinKernel& k : *kernels) {
      const auto found = known ? known->find(k.name) : Outcomes::iterator();
      const bool has_source = known && found != known->end();
      count(k.name, has_source ? found->second : without_source(texts, options_));
    }
  }

  const CutShareOptions& options_;
  const bool vendor_;
  const Entries unit_texts_;  // PTX of translation units (-rdc), which are linked into another part
  std::set<std::string> foreign_;
  CutShare share_;
};

bool is_unit(const Entries& entries) {
  return std::ranges::any_of(entries, &image::Entry::relocatable);
}

std::string kernels_text(size_t n) {
  return std::to_string(n) + (n == 1 ? " kernel" : " kernels");
}

}  // namespace

#define TS_ROW(id, name, text) name,
const char* outcome_name(CutOutcome outcome) {
  static constexpr const char* kNames[] = {TS_CUT_OUTCOMES(TS_ROW)};
  return kNames[size_t(outcome)];
}
#undef TS_ROW
#define TS_ROW(id, name, text) text,
const char* outcome_text(CutOutcome outcome) {
  static constexpr const char* kTexts[] = {TS_CUT_OUTCOMES(TS_ROW)};
  return kTexts[size_t(outcome)];
}
#undef TS_ROW

base::Result<CutShare> cut_share(std::span<const uint8_t> bytes, const CutShareOptions& options) {
  auto parts = image::parts(bytes);
  if (!parts) return parts.error();
  std::vector<Entries> containers;
  std::vector<std::string> broken;
  Entries unit_texts;
  for (const auto part : *parts) {
    auto entries = image::list(part);
    if (!entries && entries.error().code == base::Code::kNotFound) continue;  // an empty container
    if (!entries && parts->size() == 1) return entries.error();
    if (!entries) {
      broken.push_back(entries.error().text);
      continue;
    }
    if (!is_unit(*entries)) {
      containers.push_back(std::move(*entries));
      continue;
    }
    for (const image::Entry& e : *entries)
      if (e.kind == image::EntryKind::kPtx) unit_texts.push_back(e);
  }
  Sum sum(options, std::move(unit_texts));
  for (const std::string& why : broken) sum.unread(why);
  for (const Entries& entries : containers) sum.add(entries);
  return sum.take();
}

std::string cut_share_sentence(const CutShare& share, const std::string& gpu_name, unsigned sm) {
  const std::string number = "sm_" + std::to_string(sm);
  std::string out = "On " + gpu_name + (gpu_name == number ? "" : " (" + number + ")");
  if (share.kernels.empty()) {
    out += " nothing of this file runs";
    for (const std::string& t : share.not_for_gpu)
      out += (&t == &share.not_for_gpu[0] ? ": it holds " : ", ") + t;
    return out + ".";
  }
  const size_t n = share.kernels.size(), percent = share.n_cut() * 100 / n;
  const bool nearly_none = percent == 0 && share.n_cut() != 0;
  out += " " + std::to_string(share.n_cut()) + " of " + kernels_text(n) + " can be cut (" +
         (nearly_none ? "less than 1" : std::to_string(percent)) + " %)";
  const char* before = ": ";
  for (size_t i = 0; i < kCutOutcomes; i++) {
    if (i == size_t(CutOutcome::kCut) || share.counts[i] == 0) continue;
    out += before + std::to_string(share.counts[i]) + " " + outcome_text(CutOutcome(i));
    before = "; ";
  }
  return out + ".";
}

std::vector<std::string> cut_share_remedies(const CutShare& share, unsigned sm) {
  const auto count = [&](CutOutcome o) { return share.counts[size_t(o)]; };
  const std::string number = std::to_string(sm);
  const std::string capability = number.substr(0, number.size() - 1) + "." + number.substr(number.size() - 1);
  std::vector<std::string> out;
  if (count(CutOutcome::kMachineCode) + count(CutOutcome::kNewerPtx) + count(CutOutcome::kNoSource) > 0)
    out.push_back("Build it with its PTX: nvcc -gencode arch=compute_" + number + ",code=[sm_" + number +
                  ",compute_" + number + "], or TORCH_CUDA_ARCH_LIST=\"" + capability +
                  "+PTX\" for extensions of PyTorch.");
  if (count(CutOutcome::kMachineCode) > 0)
    out.push_back(
        "What Triton, torch.compile and XLA compile when a program runs can be cut with tessera run "
        "--keep-ptx.");
  if (count(CutOutcome::kBits) > 0)
    out.push_back("tessera prepare FILE may prove that variants of " +
                  kernels_text(count(CutOutcome::kBits)) + " give the same bits; they are cut then.");
  if (count(CutOutcome::kBits) > 0)
    out.push_back("tessera run --bit-stability relaxed also cuts " + kernels_text(count(CutOutcome::kBits)) +
                  "; last bits may then change.");
  if (count(CutOutcome::kOrder) > 0)
    out.push_back("tessera run --allow-order-dependent also cuts " + kernels_text(count(CutOutcome::kOrder)) +
                  "; results may then change from run to run.");
  if (share.n_cut() < share.kernels.size())
    out.push_back(
        "Multiprocessors that best-effort programs leave free help with every kernel: "
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE under MPS.");
  return out;
}

}  // namespace tessera::cli
