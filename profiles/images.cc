#include "profiles/images.h"

#include <map>

#include "base/user_file.h"
#include "kernels/ptx/parser.h"
#include "kernels/slice/slice.h"

namespace tessera::profiles {
namespace {

struct Answers {
  std::string problem;  // "" if the image was understood
  std::map<std::string, slice::Verdict> kernels;
};

Answers answers_of(const std::string& path) {
  Answers out;
  constexpr uint64_t kMostBytes = uint64_t(1) << 30;
  const auto text = base::read_user_file(path, kMostBytes);
  if (!text) {
    out.problem = "its image has no PTX";
    return out;
  }
  auto module = ptx::parse(*text);
  if (!module) {
    out.problem = "its PTX is not understood: " + module.error().text;
    return out;
  }
  for (slice::KernelReport& report : slice::analyse(*module)) out.kernels[report.kernel] = report.verdict;
  return out;
}

}  // namespace

void add_verdicts(Profile& profile, const std::string& folder) {
  std::map<uint64_t, Answers> images;
  for (auto& [key, record] : profile.kernels) {
    if (key.image_hash == 0) {
      record.cut_reason = "its image is not known";
      continue;
    }
    auto [at, is_new] = images.try_emplace(key.image_hash);
    if (is_new) at->second = answers_of(image_path(folder, key.image_hash));
    const Answers& answers = at->second;
    const auto found = answers.kernels.find(key.kernel);
    if (found == answers.kernels.end()) {
      record.cut_reason = answers.problem.empty() ? "not in its image's PTX" : answers.problem;
      continue;
    }
    const slice::Verdict& verdict = found->second;
    record.cut = verdict.may_cut() ? Cut::kYes : Cut::kNo;
    record.cut_reason = verdict.may_cut() ? "" : slice::refusal_name(verdict.refusal);
  }
}

}  // namespace tessera::profiles
