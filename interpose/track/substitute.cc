// Looks at an image that a best-effort program loads and, if the driver would compile its PTX anyway, makes a
// copy in which every kernel that may be cut has a sliced variant beside the untouched original (D12 and D13 in
// docs/architecture.md). The one file of the preload library that is built with exceptions; none leaves it.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <optional>

#include "base/kernel_key.h"
#include "base/raw_log.h"
#include "base/scoped_fd.h"
#include "driver_api/ask.h"
#include "interpose/state/config.h"
#include "interpose/track/classify.h"
#include "interpose/track/reasons.h"
#include "interpose/track/track.h"
#include "kernels/cache/rewritten.h"
#include "kernels/cache/store.h"
#include "kernels/image/cubin.h"
#include "kernels/image/image.h"
#include "kernels/image/origin.h"
#include "kernels/image/vendor.h"
#include "kernels/image/write.h"
#include "kernels/ptx/parser.h"
#include "kernels/ptx/printer.h"
#include "kernels/slice/slice.h"

namespace tessera::track {
namespace {

constexpr size_t kMaxImageBytes = size_t(256) << 20;
constexpr const char* kCollectivePrefixes[] = {"libnccl", "libnvshmem"};

bool has_prefix(const char* base, const char* prefix) {
  return strncmp(base, prefix, strlen(prefix)) == 0;
}

const char* base_name(const char* path) {
  const char* slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}

// File of the loaded object that an address lies in; "" if none (heap: code made at run time by the user's
// program).
const char* file_of(const void* address) {
  Dl_info info{};
  if (!address || !dladdr(address, &info) || !info.dli_fname) return "";
  return base_name(info.dli_fname);
}

template <size_t N>
bool any_prefix(const char* base, const char* const (&prefixes)[N]) {
  return std::any_of(prefixes, prefixes + N, [&](const char* p) { return has_prefix(base, p); });
}

// Every GPU must agree on which entry it would take; 0 if they do not or there is none.
unsigned common_sm() {
  const auto& real = driver_api::real();
  int n = 0;
  if (real.cuDeviceGetCount(&n) != CUDA_SUCCESS) return 0;
  unsigned common = 0;
  for (int i = 0; i < n; i++) {
    const int major = driver_api::attribute_or_zero(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, i);
    const unsigned sm =
        unsigned(major * 10 + driver_api::attribute_or_zero(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, i));
    if (common && common != sm) return 0;
    common = sm;
  }
  return common;
}

// Returns the issue slots of the GPU per byte that it moves; 0 if the driver does not say.
double slots_per_byte() {
  const int sms = driver_api::attribute_or_zero(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0);
  const int clock_khz = driver_api::attribute_or_zero(CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 0);
  const int memory_khz = driver_api::attribute_or_zero(CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 0);
  const int bus_bits = driver_api::attribute_or_zero(CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 0);
  const double bytes_per_ms = 2.0 * memory_khz * bus_bits / 8;  // double data rate
  constexpr double kLanes = 128;                                // per SM and cycle: four schedulers of 32
  return bytes_per_ms > 0 ? kLanes * sms * clock_khz / bytes_per_ms : 0;
}

void set_classes(Image& image, const ptx::Module& module) {
  const double border = slots_per_byte();
  const ptx::FunctionIndex index(module);
  for (KernelFacts& k : image.kernels)
    if (const ptx::Function* f = index.find(k.name)) k.resource_class = classify(cost_of(*f), border);
}

std::string_view text_of(const std::vector<uint8_t>& payload) {
  return {reinterpret_cast<const char*>(payload.data()), payload.size()};
}

// An image that is loaded as it is: its kernels are classified from whatever PTX is in it.
void describe(Image& out, const std::vector<image::Entry>& entries) {
  constexpr size_t kMaxText = size_t(4) << 20;  // parsing delays the program
  for (const image::Entry& e : entries) {
    if (e.kind != image::EntryKind::kPtx || std::max(e.stored_bytes, e.claimed_bytes) > kMaxText) continue;
    auto payload = image::load(e);
    if (!payload) continue;
    auto module = ptx::parse(text_of(*payload));
    if (!module) continue;
    for (const ptx::Item& item : module->items)
      if (item.kind == ptx::Item::Kind::kFunction && item.function->is_entry && item.function->has_body)
        out.kernels.push_back({.name = std::string(item.function->name)});
    return set_classes(out, *module);
  }
}

cache::Rewritten rewrite(ptx::Module& module, const slice::Options& options) {
  cache::Rewritten out;
  bool any = false;
  const ptx::FunctionIndex index(module);
  for (slice::KernelReport& k : slice::add_variants(module, options)) {
    const bool may = k.verdict.may_cut();
    any = any || may;
    base::raw_log(base::LogLevel::kDebug, "kernel %s: %s %s", k.kernel.c_str(),
                  slice::refusal_name(k.verdict.refusal), k.verdict.detail.c_str());
    const ptx::Function* f = index.find(k.kernel);
    const ThreadCost cost = f ? cost_of(*f) : ThreadCost();
    out.kernels.push_back({k.kernel, k.verdict.refusal, k.n_params, k.param_bytes, k.origin_offset,
                           !k.look_back.empty(), cost.slots, cost.bytes});
  }
  if (any) out.text = ptx::print(module);
  return out;
}

// Small texts are rewritten sooner than a file is opened.
constexpr size_t kLeastCachedBytes = size_t(32) << 10;

std::optional<cache::Rewritten> rewritten(std::string_view text) {
  const state::Config& config = state::config();
  const bool keep = config.cache_dir[0] && config.cache_max_bytes && text.size() >= kLeastCachedBytes;
  const cache::Store store(keep ? config.cache_dir : "", config.cache_max_bytes);
  cache::Key key;
  if (keep) {
    key = cache::key_of(text, driver_api::version_or_zero(), config.allow_order_dependent);
    auto bytes = store.load(key);
    auto kept = bytes ? cache::decode(*bytes) : base::Result<cache::Rewritten>(bytes.error());
    if (kept) return std::move(*kept);
    if (kept.error().code != base::Code::kNotFound)
      base::raw_log(base::LogLevel::kInfo, "rewritten image made anew: %s", kept.error().text.c_str());
  }
  auto module = ptx::parse(text);
  if (!module) {
    base::raw_log(base::LogLevel::kInfo, "image not cut: %s", module.error().text.c_str());
    return std::nullopt;
  }
  cache::Rewritten made = rewrite(*module, {.allow_order_dependent = config.allow_order_dependent});
  if (!keep) return made;
  if (base::Status saved = store.save(key, cache::encode(made)); !saved)
    base::raw_log(base::LogLevel::kInfo, "rewritten image not kept: %s", saved.error().text.c_str());
  return made;
}

// The image as a whole, for all its kernels.
void refuse(Image& out, Reason reason) {
  count_refusal(reason);
  out.outcome = outcome_of(reason);
}

void substitute(Image& out, const image::Entry& entry, std::string_view text) {
  auto made = rewritten(text);
  if (!made) return refuse(out, RunTimeReason::kNotParsed);
  const double border = slots_per_byte();
  for (cache::Kernel& k : made->kernels) {
    const bool may = k.refusal == slice::Refusal::kNone;
    (may ? g_cut_kernels : g_refused_kernels).fetch_add(1, std::memory_order_relaxed);
    if (!may) count_refusal(k.refusal);
    out.kernels.push_back({std::move(k.name), k.n_params, k.param_bytes, k.origin_offset, may,
                           k.ascending_row, k.refusal, uint32_t(classify({k.slots, k.bytes}, border))});
  }
  if (!made->text.empty()) out.text = image::compiled_as(entry, std::move(made->text));
}

// A program launches few kernels of an image with thousands. A variant costs about 50 us of the load
// (tests/bench/bench_load.cc), and the driver compiles it. Beyond this number only launched kernels get one, later.
constexpr size_t kMostVariants = 2'000;

bool has_many_kernels(std::string_view text) {
  size_t n = 0;
  for (size_t at = 0; n <= kMostVariants && (at = text.find(".entry", at)) != text.npos; at++) n++;
  return n > kMostVariants;
}

// Several PTX entries for one target are translation units that the driver links; one of them is not the
// module.
bool one_of_several(const std::vector<image::Entry>& entries, const image::Entry& ptx) {
  return std::ranges::count_if(entries, [&](const image::Entry& e) {
           return e.kind == image::EntryKind::kPtx && e.sm == ptx.sm &&
                  e.arch_specific == ptx.arch_specific && e.family_specific == ptx.family_specific;
         }) > 1;
}

// The image stays as it is; its PTX is kept for siblings.
void keep_text(Image& out, const image::Entry& entry, std::string_view text, bool compiled_here,
               cache::ProvedVariants proved) {
  if (!SiblingSource::has_room(text.size())) return refuse(out, RunTimeReason::kSiblingLimit);
  out.source =
      std::make_shared<const SiblingSource>(std::string(text), entry, compiled_here, std::move(proved));
}

// Variants of this machine code that somebody proved: beside it (`tessera ptxas`), or in the cache (`tessera prepare`).
cache::ProvedVariants proved_variants(std::string_view ptx, std::string_view code) {
  const state::Config& config = state::config();
  const bool keep = config.cache_dir[0] && config.cache_max_bytes;
  std::string problem;
  auto found =
      cache::find_proved(ptx, code, {keep ? config.cache_dir : "", config.cache_max_bytes}, &problem);
  if (!problem.empty()) base::raw_log(base::LogLevel::kInfo, "proved variants not used: %s", problem.c_str());
  return found;
}

// The same for machine code, if it surely was made from the PTX beside it.
void keep_source(Image& out, const std::vector<image::Entry>& entries, const image::Entry& cubin,
                 const std::vector<uint8_t>& code) {
  const image::Entry* source = image::source_of(entries, cubin, code);
  if (!source) return refuse(out, RunTimeReason::kNoSource);
  auto text = image::load(*source);
  if (!text) return refuse(out, RunTimeReason::kNoSource);
  keep_text(out, *source, text_of(*text), false, proved_variants(text_of(*text), text_of(code)));
}

// Read, not mapped: a file that shrinks under a mapping would be a signal in the host program. Regular files
// only, so that nothing is taken out of a pipe.
bool read_whole(const char* path, std::vector<uint8_t>* bytes) {
  const base::ScopedFd fd(open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat facts {};
  if (!fd.valid() || fstat(fd.get(), &facts) != 0 || !S_ISREG(facts.st_mode)) return false;
  if (facts.st_size <= 0 || size_t(facts.st_size) > kMaxImageBytes) return false;
  bytes->resize(size_t(facts.st_size));
  for (size_t have = 0; have < bytes->size();) {
    const ssize_t got = read(fd.get(), bytes->data() + have, bytes->size() - have);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    have += size_t(got);
  }
  return true;
}

// Looks at what the driver may take: the chosen entry with the others that it would be linked with, or any.
void look_for_managed_variables(const std::vector<image::Entry>& entries, const image::Entry* chosen) {
  if (!state::config().parkable || g_has_managed_variables.load(std::memory_order_relaxed)) return;
  for (const image::Entry& e : entries) {
    if (chosen && (e.kind != chosen->kind || e.sm != chosen->sm)) continue;
    auto payload = image::load(e);
    if (payload && image::has_managed_variable(e.kind, *payload)) return has_managed_variables();
  }
}

// `from`: file that the image is in, `by`: file of the code that loads it; list() gives its entries.
template <class List>
std::shared_ptr<Image> inspect_listed(const char* from, const char* by, List&& list) {
  const state::Config& config = state::config();
  auto out = std::make_shared<Image>();
  out->collective = any_prefix(from, kCollectivePrefixes) || any_prefix(by, kCollectivePrefixes);
  if (out->collective) g_has_collectives.store(true, std::memory_order_relaxed);
  // NVIDIA's libraries are never modified, in files or in memory.
  if (image::vendor_library(from) || image::vendor_library(by)) {
    out->outcome = ipc::abi::kOutcomeLibrary;
    return out;
  }
  auto entries = list();
  if (!entries) {
    base::raw_log(base::LogLevel::kDebug, "image not read: %s", entries.error().text.c_str());
    return out;
  }
  const unsigned sm = common_sm();
  const image::Entry* chosen = sm ? image::choose(*entries, sm) : nullptr;
  look_for_managed_variables(*entries, chosen);
  if (config.priority != 0) {
    describe(*out, *entries);
    return out;
  }
  if (!chosen) return out;
  auto code = image::load(*chosen);
  if (!code) {
    base::raw_log(base::LogLevel::kDebug, "image not read: %s", code.error().text.c_str());
    return out;
  }
  out->hash = base::fnv1a(code->data(), code->size());
  const bool linked = chosen->kind == image::EntryKind::kPtx && one_of_several(*entries, *chosen);
  if (linked && config.slice) refuse(*out, RunTimeReason::kNoSource);
  const bool ours = chosen->kind == image::EntryKind::kPtx && config.slice && !linked;
  if (ours && has_many_kernels(text_of(*code)))
    keep_text(*out, *chosen, text_of(*code), true, {});
  else if (ours)
    substitute(*out, *chosen, text_of(*code));
  else
    describe(*out, *entries);
  if (chosen->kind == image::EntryKind::kCubin && config.slice) keep_source(*out, *entries, *chosen, *code);
  if (!out->text.empty() || out->source) out->never_cut = never_cut();
  return out;
}

template <class F>
std::shared_ptr<Image> guarded(F&& look_at_it) noexcept try {
  auto image = look_at_it();
  if (image) std::ranges::sort(image->kernels, {}, &KernelFacts::name);
  return image;
} catch (const std::exception& e) {
  base::raw_log(base::LogLevel::kError, "image not cut: %s", e.what());
  return nullptr;
} catch (...) {
  return nullptr;
}

}  // namespace

constinit std::atomic<bool> g_has_collectives{false};
constinit std::atomic<bool> g_has_managed_variables{false};
constinit std::atomic<uint64_t> g_cut_kernels{0};
constinit std::atomic<uint64_t> g_refused_kernels{0};

std::shared_ptr<Image> inspect(const void* bytes, const void* caller) noexcept {
  if (state::config().disabled || !bytes) return nullptr;
  return guarded([&] {
    const char* from = file_of(bytes);
    return inspect_listed(from, file_of(caller), [&] { return image::list_unsized(bytes, kMaxImageBytes); });
  });
}

std::shared_ptr<Image> inspect_file(const char* path, const void* caller) noexcept {
  if (state::config().disabled || !path) return nullptr;
  return guarded([&]() -> std::shared_ptr<Image> {
    std::vector<uint8_t> bytes;
    if (!read_whole(path, &bytes)) return nullptr;
    return inspect_listed(base_name(path), file_of(caller), [&] { return image::list(bytes); });
  });
}

void load_as_it_is(Image& image) noexcept {
  image.text = std::string();
  for (KernelFacts& kernel : image.kernels) kernel.has_variant = false;
}

}  // namespace tessera::track
