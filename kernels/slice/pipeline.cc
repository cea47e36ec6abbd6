// The passes of the slicing rewrite, in order. After the last one (or each, Options::verify_each_pass) the
// verifier looks at what was made; a finding removes everything that was added, and the kernels stay as they
// were.
#include <algorithm>
#include <iterator>

#include "kernels/ptx/verifier.h"
#include "kernels/slice/rewrite.h"

namespace tessera::slice {
namespace {

struct Pass {
  const char* name;
  void (*run)(Rewrite&);
};
constexpr Pass kPasses[] = {
    {"clone", clone_functions},     {"append_parameter", append_parameter},
    {"strip_debug", strip_debug},   {"read_coordinates", read_coordinates},
    {"thread_calls", thread_calls},
};

base::Status verify_clones(const Rewrite& rewrite) {
  std::vector<const ptx::Function*> functions;
  for (const Clone& c : rewrite.clones) functions.push_back(c.function);
  return ptx::verify(rewrite.module, functions);
}

}  // namespace

std::vector<KernelReport> add_variants(ptx::Module& module, const Options& options) {
  Closure closure(module);
  std::vector<KernelReport> reports = analyse_module(module, closure, options);
  Rewrite rewrite{module, closure, {}, {}, {}};
  const ptx::FunctionIndex index(module);
  for (const KernelReport& report : reports)
    if (report.verdict.may_cut() && !index.find(report.kernel + kVariantSuffix))
      rewrite.kernels.push_back(index.find(report.kernel)->name);
  const size_t n_items = module.items.size();
  for (const Pass& pass : kPasses) {
    if (rewrite.kernels.empty()) break;
    pass.run(rewrite);
    const bool last = &pass == std::end(kPasses) - 1;
    base::Status status = last || options.verify_each_pass ? verify_clones(rewrite) : base::ok();
    if (!status.ok()) {
      module.items.resize(n_items);
      for (KernelReport& report : reports) {
        if (report.verdict.may_cut()) {
          report.verdict =
              refuse(Refusal::kTooComplex, std::string("pass ") + pass.name + ": " + status.error().text);
        }
      }
      return reports;
    }
    if (options.dump) options.dump(options.dump_user, pass.name, module);
  }
  return reports;
}

}  // namespace tessera::slice
