// The functions that NVTX calls. Its headers are all of it, so that each library of a program has an NVTX of its own, which comes to
// InitializeInjectionNvtx2 at its first call, in any thread. The tool that was to be loaded in our place is asked first, and
// puts its functions where NVTX looks for them; ours take their places and call them, so that it gets every call and its
// answers are the program's. What we do not need stays as it left it.
#include <nvtx3/nvToolsExt.h>
#include <pthread.h>

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "base/errno_guard.h"
#include "base/loader.h"
#include "interpose/ranges/contract.h"
#include "interpose/ranges/match.h"
#include "interpose/ranges/names.h"
#include "interpose/ranges/open.h"

namespace tessera::ranges {
namespace {

// The functions whose places we take: module and name, as in nvtxTypes.h.
#define TS_TAKEN(ROW)               \
  ROW(CORE, RangeStartEx)           \
  ROW(CORE, RangeStartA)            \
  ROW(CORE, RangeStartW)            \
  ROW(CORE, RangeEnd)               \
  ROW(CORE, RangePushEx)            \
  ROW(CORE, RangePushA)             \
  ROW(CORE, RangePushW)             \
  ROW(CORE, RangePop)               \
  ROW(CORE, NameCategoryA)          \
  ROW(CORE, NameCategoryW)          \
  ROW(CORE2, DomainRangeStartEx)    \
  ROW(CORE2, DomainRangeEnd)        \
  ROW(CORE2, DomainRangePushEx)     \
  ROW(CORE2, DomainRangePop)        \
  ROW(CORE2, DomainNameCategoryA)   \
  ROW(CORE2, DomainNameCategoryW)   \
  ROW(CORE2, DomainRegisterStringA) \
  ROW(CORE2, DomainRegisterStringW) \
  ROW(CORE2, DomainCreateA)         \
  ROW(CORE2, DomainCreateW)

// The other tool's functions; null where it has none. All NVTX of a process get the same ones.
#define TS_ROW(module, name) constinit std::atomic<nvtx##name##_impl_fntype> g_##name{nullptr};
TS_TAKEN(TS_ROW)
#undef TS_ROW
#define TS_NEXT(name) g_##name.load(std::memory_order_acquire)

constexpr uint32_t kMostPatterns = 15;
struct Pattern {
  char text[48];
  uint32_t kind;
};

// Written once, under g_once.
Pattern g_patterns[kMostPatterns];
uint32_t g_n_patterns = 0;
const RequestSide* g_side = nullptr;  // null: nothing is measured
NvtxInitializeInjectionNvtxFunc_t g_other = nullptr;

constinit std::atomic<uint64_t> g_own_ranges{0};  // ids, where no other tool gives them

struct Message {
  std::string_view text;
  uint32_t category = 0;
};

uint32_t kind_of(nvtxDomainHandle_t domain, const Message& message) {
  Range range{.domain = {}, .name = message.text, .category = {}};
  if (domain) range.domain = name_of(key_of(Named::kDomain, nullptr, reinterpret_cast<uint64_t>(domain)));
  if (message.category) range.category = name_of(key_of(Named::kCategory, domain, message.category));
  for (uint32_t i = 0; i < g_n_patterns; i++)
    if (means(g_patterns[i].text, range)) return g_patterns[i].kind;
  return 0;
}

uint64_t begin(uint32_t kind, bool of_thread) {
  return kind ? g_side->begin(kind, of_thread) : 0;
}

// `of_thread`: a push; else a start.
uint64_t begin(nvtxDomainHandle_t domain, const char* text, bool of_thread) {
  return begin(kind_of(domain, {text ? text : ""}), of_thread);
}
uint64_t begin(nvtxDomainHandle_t domain, const wchar_t* text, bool of_thread) {
  char utf8[256];
  to_utf8(text ? text : L"", utf8, sizeof utf8);
  return begin(kind_of(domain, {utf8}), of_thread);
}
uint64_t begin(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* event, bool of_thread) {
  if (!event || event->size < sizeof *event) return 0;
  char utf8[256] = "";
  const char* text = utf8;
  if (event->messageType == NVTX_MESSAGE_TYPE_UNICODE && event->message.unicode)
    to_utf8(event->message.unicode, utf8, sizeof utf8);
  else if (event->messageType == NVTX_MESSAGE_TYPE_ASCII && event->message.ascii)
    text = event->message.ascii;
  else if (event->messageType == NVTX_MESSAGE_TYPE_REGISTERED)
    text = name_of(key_of(Named::kString, nullptr, reinterpret_cast<uint64_t>(event->message.registered)));
  return begin(kind_of(domain, {text, event->category}), of_thread);
}

template <class What, class Next, class... Args>
nvtxRangeId_t start_range(nvtxDomainHandle_t domain, What what, Next next, Args... args) {
  const nvtxRangeId_t id = next ? next(args...) : g_own_ranges.fetch_add(1, std::memory_order_relaxed) + 1;
  if (const uint64_t request = begin(domain, what, false)) start(id, request);
  return id;
}

template <class What, class Next, class... Args>
int push_range(nvtxDomainHandle_t domain, What what, Next next, Args... args) {
  push(domain, begin(domain, what, true));
  return next ? next(args...) : NVTX_NO_PUSH_POP_TRACKING;
}

// The handle that the other tool gave it, else the address of its name.
template <class Handle, class Text, class Next, class... Args>
Handle name_handle(Named what, Text text, Next next, Args... args) {
  Handle handle = next ? next(args...) : nullptr;
  const char* const kept = keep_name(text);
  if (!handle && !g_other) handle = reinterpret_cast<Handle>(const_cast<char*>(kept));
  if (handle) set_name(key_of(what, nullptr, reinterpret_cast<uint64_t>(handle)), kept);
  return handle;
}

nvtxRangeId_t take_RangeStartEx(const nvtxEventAttributes_t* event) {
  return start_range(nullptr, event, TS_NEXT(RangeStartEx), event);
}
nvtxRangeId_t take_RangeStartA(const char* text) {
  return start_range(nullptr, text, TS_NEXT(RangeStartA), text);
}
nvtxRangeId_t take_RangeStartW(const wchar_t* text) {
  return start_range(nullptr, text, TS_NEXT(RangeStartW), text);
}
nvtxRangeId_t take_DomainRangeStartEx(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* event) {
  return start_range(domain, event, TS_NEXT(DomainRangeStartEx), domain, event);
}

void take_RangeEnd(nvtxRangeId_t id) {
  end(id);
  if (const auto next = TS_NEXT(RangeEnd)) next(id);
}
void take_DomainRangeEnd(nvtxDomainHandle_t domain, nvtxRangeId_t id) {
  end(id);
  if (const auto next = TS_NEXT(DomainRangeEnd)) next(domain, id);
}

int take_RangePushEx(const nvtxEventAttributes_t* event) {
  return push_range(nullptr, event, TS_NEXT(RangePushEx), event);
}
int take_RangePushA(const char* text) {
  return push_range(nullptr, text, TS_NEXT(RangePushA), text);
}
int take_RangePushW(const wchar_t* text) {
  return push_range(nullptr, text, TS_NEXT(RangePushW), text);
}
int take_DomainRangePushEx(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* event) {
  return push_range(domain, event, TS_NEXT(DomainRangePushEx), domain, event);
}

int take_RangePop() {
  pop(nullptr);
  const auto next = TS_NEXT(RangePop);
  return next ? next() : NVTX_NO_PUSH_POP_TRACKING;
}
int take_DomainRangePop(nvtxDomainHandle_t domain) {
  pop(domain);
  const auto next = TS_NEXT(DomainRangePop);
  return next ? next(domain) : NVTX_NO_PUSH_POP_TRACKING;
}

void take_NameCategoryA(uint32_t category, const char* name) {
  set_name(key_of(Named::kCategory, nullptr, category), keep_name(name));
  if (const auto next = TS_NEXT(NameCategoryA)) next(category, name);
}
void take_NameCategoryW(uint32_t category, const wchar_t* name) {
  set_name(key_of(Named::kCategory, nullptr, category), keep_name(name));
  if (const auto next = TS_NEXT(NameCategoryW)) next(category, name);
}
void take_DomainNameCategoryA(nvtxDomainHandle_t domain, uint32_t category, const char* name) {
  set_name(key_of(Named::kCategory, domain, category), keep_name(name));
  if (const auto next = TS_NEXT(DomainNameCategoryA)) next(domain, category, name);
}
void take_DomainNameCategoryW(nvtxDomainHandle_t domain, uint32_t category, const wchar_t* name) {
  set_name(key_of(Named::kCategory, domain, category), keep_name(name));
  if (const auto next = TS_NEXT(DomainNameCategoryW)) next(domain, category, name);
}

nvtxStringHandle_t take_DomainRegisterStringA(nvtxDomainHandle_t domain, const char* text) {
  return name_handle<nvtxStringHandle_t>(Named::kString, text, TS_NEXT(DomainRegisterStringA), domain, text);
}
nvtxStringHandle_t take_DomainRegisterStringW(nvtxDomainHandle_t domain, const wchar_t* text) {
  return name_handle<nvtxStringHandle_t>(Named::kString, text, TS_NEXT(DomainRegisterStringW), domain, text);
}
nvtxDomainHandle_t take_DomainCreateA(const char* name) {
  return name_handle<nvtxDomainHandle_t>(Named::kDomain, name, TS_NEXT(DomainCreateA), name);
}
nvtxDomainHandle_t take_DomainCreateW(const wchar_t* name) {
  return name_handle<nvtxDomainHandle_t>(Named::kDomain, name, TS_NEXT(DomainCreateW), name);
}

// One pattern a line. More than there are kinds, or longer than a kind's name: they are left out; `tessera run` refuses them.
void read_patterns(const char* text, bool yields) {
  while (text && *text && g_n_patterns < kMostPatterns) {
    const size_t size = strcspn(text, "\n");
    Pattern& pattern = g_patterns[g_n_patterns];
    if (size > 0 && size < sizeof pattern.text) {
      memcpy(pattern.text, text, size);
      pattern.kind = g_side->kind(pattern.text, yields);
      g_n_patterns += pattern.kind != 0;
    }
    text += size + (text[size] != 0);
  }
}

void begin_once() {
  const base::Loader loader = base::loader();
  const auto get = reinterpret_cast<GetRequestSide>(loader.dlsym(RTLD_DEFAULT, kGetRequestSide));
  g_side = get ? get(kContractVersion) : nullptr;
  if (g_side) {
    prepare_open(g_side);
    read_patterns(getenv("TESSERA_REQUEST_RANGES"), false);
    read_patterns(getenv("TESSERA_YIELD_RANGES"), true);
  }
  const char* const other = getenv("TESSERA_NVTX_TOOL");
  void* const library = other && *other ? loader.dlopen(other, RTLD_LAZY) : nullptr;
  if (library)
    g_other = reinterpret_cast<NvtxInitializeInjectionNvtxFunc_t>(
        loader.dlsym(library, "InitializeInjectionNvtx2"));
}

struct Place {
  NvtxFunctionPointer* at = nullptr;  // null: this NVTX is older
  NvtxFunctionPointer was = nullptr;  // before the other tool came: NVTX's own, which initialises
};

NvtxFunctionPointer* place_of(const NvtxExportTableCallbacks* callbacks, NvtxCallbackModule module,
                              uint32_t id) {
  NvtxFunctionTable functions = nullptr;
  unsigned size = 0;
  return callbacks->GetModuleFunctionTable(module, &functions, &size) && id < size ? functions[id] : nullptr;
}

template <class Function>
void take_place(const Place& place, Function ours, std::atomic<Function>& next) {
  if (!place.at) return;
  if (*place.at != place.was && *place.at != reinterpret_cast<NvtxFunctionPointer>(ours))
    next.store(reinterpret_cast<Function>(*place.at), std::memory_order_release);
  *place.at = reinterpret_cast<NvtxFunctionPointer>(ours);
}

int join(NvtxGetExportTableFunc_t get_table) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, begin_once);
  const auto* callbacks = static_cast<const NvtxExportTableCallbacks*>(get_table(NVTX_ETID_CALLBACKS));
  if (g_n_patterns == 0 || !callbacks || callbacks->struct_size < sizeof *callbacks)
    return g_other ? g_other(get_table) : 0;
#define TS_ROW(module, name)                                                             \
  Place name{place_of(callbacks, NVTX_CB_MODULE_##module, NVTX_CBID_##module##_##name)}; \
  if (name.at) name.was = *name.at;
  TS_TAKEN(TS_ROW)
#undef TS_ROW
  const bool other_failed = g_other && g_other(get_table) == 0;
#define TS_ROW(module, name)                        \
  if (other_failed && name.at) *name.at = name.was; \
  take_place(name, take_##name, g_##name);
  TS_TAKEN(TS_ROW)
#undef TS_ROW
  return 1;
}

}  // namespace
}  // namespace tessera::ranges

extern "C" __attribute__((visibility("default"))) int InitializeInjectionNvtx2(
    NvtxGetExportTableFunc_t get_table) noexcept {
  const tessera::base::ErrnoGuard keep_errno;
  return tessera::ranges::join(get_table);
}
