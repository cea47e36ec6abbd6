// libtessera_audit.so: the loader tells it of every object that it maps and of every symbol that it binds for dlsym or a
// linkage table (rtld-audit(7)). It serves who passes the preload libraries by: functions of a driver that was opened by
// its path or in another namespace become those of libtessera.so, functions of cuBLAS and cuDNN that were asked for by
// dlsym become the hooks of libtessera_ops.so, and what NVML says of memory goes through libtessera.so. docs/library-calls.md and docs/driver_api.md say which ways these are.
//
// The loader keeps the address that it is given: a call through a bound symbol costs what it cost before. There are no
// pltenter and pltexit.
//
// Runs inside the loader, in any thread, often under its lock: no libc, no loader, no allocation, no thread-local
// storage, and of the preload libraries it calls what operations/hook.h has. What it does not know it leaves as it is.
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <atomic>

#include "base/exports.h"
#include "base/machine.h"
#include "interpose/audit/contract.h"
#include "operations/hook.h"

namespace tessera::audit {
namespace {

using base::equal;
using base::Exports;
using base::file_name;
using base::starts_with;
constexpr auto kRelaxed = std::memory_order_relaxed;

// The kind of an object; in the low bits of its cookie, whose other bits are its link map.
enum Kind : uintptr_t {
  kOther,
  kDriver,
  kLibrary,     // cuBLAS, cuBLASLt, cuDNN
  kOurs,        // a preload library
  kManagement,  // NVML
};
constexpr uintptr_t kKindBits = 7;
static_assert(alignof(link_map) > kKindBits);

Kind kind_of(uintptr_t cookie) {
  return static_cast<Kind>(cookie & kKindBits);
}
const link_map* map_of(uintptr_t cookie) {
  return reinterpret_cast<const link_map*>(cookie & ~kKindBits);
}

// The preload libraries, null where they are not; written before main(), by the only thread.
constinit DriverSide* g_driver_side = nullptr;
constinit Exports g_shim, g_operations;
constinit operations::GetHook g_get_hook = nullptr;
constinit operations::ForgetLibrary g_forget_library = nullptr;
// From then on they are relocated and may be called. What was bound before was bound to them by the loader.
constinit bool g_started = false;

bool is_shim(const link_map* map) {
  if (g_driver_side || !equal(file_name(map->l_name), "libtessera.so")) return false;
  const Exports exports(map);
  auto* side = static_cast<DriverSide*>(exports.find("tessera_audit_driver", nullptr));
  if (!side || side->version != kContractVersion) return false;
  g_driver_side = side;
  g_shim = exports;
  return true;
}

bool is_operations(const link_map* map) {
  if (g_get_hook || !equal(file_name(map->l_name), "libtessera_ops.so")) return false;
  g_operations = Exports(map);
  g_forget_library =
      reinterpret_cast<operations::ForgetLibrary>(g_operations.find(operations::kForgetLibraryName, nullptr));
  if (g_forget_library)
    g_get_hook = reinterpret_cast<operations::GetHook>(g_operations.find(operations::kGetHookName, nullptr));
  return g_get_hook != nullptr;
}

// Not the toolkit's library for linking, and no copy of libtessera.so.
bool is_driver(const link_map* map) {
  if (!starts_with(file_name(map->l_name), "libcuda.so")) return false;
  for (const char* at = map->l_name; *at; ++at)
    if (starts_with(at, "/stubs/")) return false;
  return Exports(map).find("tessera_shim_marker", nullptr) == nullptr;
}

bool is_library(const link_map* map) {
  const char* name = file_name(map->l_name);
  return starts_with(name, "libcublas") || starts_with(name, "libcudnn");
}

Kind kind_of(const link_map* map, Lmid_t space) {
  if (space == LM_ID_BASE && !g_started && (is_shim(map) || is_operations(map))) return kOurs;
  if (starts_with(file_name(map->l_name), "libnvidia-ml.so")) return kManagement;
  return is_driver(map) ? kDriver : is_library(map) ? kLibrary : kOther;
}

// Cookies of the drivers and libraries that are loaded. Written under the loader's lock, read without.
class Served {
 public:
  bool add(uintptr_t cookie) { return replace(0, cookie); }
  void remove(uintptr_t cookie) { replace(cookie, 0); }
  // A cookie may be another auditing library's (docs/notes/audit.md), and whatever that makes of it.
  bool has(uintptr_t cookie) {
    if ((cookie & kKindBits) == 0) return false;
    for (uintptr_t& known : cookies_)
      if (std::atomic_ref(known).load(kRelaxed) == cookie) return true;
    return false;
  }

 private:
  bool replace(uintptr_t old, uintptr_t by) {
    for (uintptr_t& known : cookies_)
      if (known == old) return std::atomic_ref(known).store(by, kRelaxed), true;
    return false;
  }
  uintptr_t cookies_[64] = {};  // cuDNN alone has eight libraries
};
constinit Served g_served;

// ---- the driver

// As libc would ask: a sandbox allows that.
long find_status(const char* path, struct stat* status) {
  return base::system_call(SYS_newfstatat, AT_FDCWD, path, status, 0);
}

bool same_file(const char* a, const char* b) {
  struct stat x, y;
  return equal(a, b) ||
         (find_status(a, &x) == 0 && find_status(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino);
}

uint64_t thread_pointer() {
  return reinterpret_cast<uint64_t>(__builtin_thread_pointer());
}

// Before libtessera.so has a driver: it is told to take this one.
bool is_to_be_ours(DriverSide* side, const link_map* driver) {
  const std::atomic_ref<uint32_t> opened(side->opened);
  uint32_t length = 0, state = kNoneOpened;
  while (driver->l_name[length]) ++length;
  if (length >= kPathBytes) return false;
  // relaxed: of the words behind it nothing is read before the store
  if (opened.compare_exchange_strong(state, kPathComing, kRelaxed)) {
    for (uint32_t i = 0; i <= length; ++i) side->opened_path[i] = driver->l_name[i];
    opened.store(kPathThere, std::memory_order_release);  // pairs with the loads here and in interpose/entry
  }
  return opened.load(std::memory_order_acquire) == kPathThere && same_file(side->opened_path, driver->l_name);
}

bool is_settled(DriverSide* side) {
  return std::atomic_ref(side->settled).load(std::memory_order_acquire) !=
         0;  // pairs with the store in interpose/entry
}

bool is_ours_too(DriverSide* side, const link_map* driver) {
  if (!is_settled(side)) return is_to_be_ours(side, driver);
  const link_map* own = side->driver;
  return own && (own == driver || side->chosen_by_user || same_file(own->l_name, driver->l_name));
}

// A name that libtessera.so does not know is asked of the driver that it opened, not of a second copy.
void* in_own_driver(DriverSide* side, const link_map* driver, const char* name) {
  const link_map* own = is_settled(side) ? side->driver : nullptr;
  return own && own != driver ? Exports(own).find(name, nullptr) : nullptr;
}

void* instead_of_driver(const link_map* driver, const char* name) {
  DriverSide* side = g_driver_side;
  if (!side || std::atomic_ref(side->opening_thread).load(kRelaxed) == thread_pointer()) return nullptr;
  if (!is_ours_too(side, driver)) {
    std::atomic_ref(side->passed_by).store(1, kRelaxed);
    return nullptr;
  }
  void* hook = g_shim.find(name, nullptr);
  return hook ? hook : in_own_driver(side, driver, name);
}

// ---- libraries

// Versions of names are called like the library: a hook is for this major version only.
void* instead_of_library(const link_map* library, const char* name, uintptr_t real) {
  if (!g_get_hook || !g_operations.find(name, Exports(library).soname())) return nullptr;
  return g_get_hook(name, reinterpret_cast<void*>(real));
}

// ---- NVML

void* instead_of_management(const link_map* management, const char* name) {
  if (!g_driver_side) return nullptr;
  for (const ManagementHook& hook : g_driver_side->management_hooks) {
    if (!hook.function || !equal(name, hook.name)) continue;
    // release: pairs with the load in interpose/hooks/nvml.cc
    std::atomic_ref(g_driver_side->management).store(management, std::memory_order_release);
    return hook.function;
  }
  return nullptr;
}

}  // namespace
}  // namespace tessera::audit

#define TS_LOADER_CALLS extern "C" __attribute__((visibility("default")))

// 2 is the highest that this file was written for; the interface has been the same since 1.
TS_LOADER_CALLS unsigned la_version(unsigned offered) {
  return offered < 2 ? offered : 2;
}

// The loader tells of bindings whose both ends ask for it, and of dlsym if one end does. BINDFROM is asked of every object,
// because glibc takes the auditing library behind us for us where it is not (docs/notes/audit.md).
TS_LOADER_CALLS unsigned la_objopen(link_map* map, Lmid_t space, uintptr_t* cookie) {
  using namespace tessera::audit;
  const Kind kind = kind_of(map, space);
  *cookie = reinterpret_cast<uintptr_t>(map) | kind;
  const bool served = kind != kOther && kind != kOurs && g_served.add(*cookie);
  return served ? LA_FLG_BINDTO | LA_FLG_BINDFROM : LA_FLG_BINDFROM;
}

TS_LOADER_CALLS unsigned la_objclose(uintptr_t* cookie) {
  using namespace tessera::audit;
  if (!g_served.has(*cookie)) return 0;
  if (g_started && g_forget_library && kind_of(*cookie) == kLibrary) g_forget_library(map_of(*cookie));
  g_served.remove(*cookie);
  return 0;
}

// Everything that the program starts with is mapped and bound; none of its code has run.
TS_LOADER_CALLS void la_preinit(uintptr_t*) {
  using namespace tessera::audit;
  g_started = true;
  if (g_driver_side) std::atomic_ref(g_driver_side->active).store(1, kRelaxed);
}

TS_LOADER_CALLS uintptr_t la_symbind64(ElfW(Sym) * symbol, unsigned, uintptr_t* from, uintptr_t* to,
                                       unsigned* flags, const char* name) {
  using namespace tessera::audit;
  const Kind kind = g_served.has(*to) ? kind_of(*to) : kOther;
  const bool is_function = ELF64_ST_TYPE(symbol->st_info) == STT_FUNC;
  const bool for_itself =
      *from == *to || kind_of(*from) == kOurs || (kind == kDriver && kind_of(*from) == kDriver);
  void* other = nullptr;
  if (g_started && is_function && !for_itself && (*flags & LA_SYMB_ALTVALUE) == 0) {
    if (kind == kDriver) other = instead_of_driver(map_of(*to), name);
    if (kind == kManagement) other = instead_of_management(map_of(*to), name);
    if (kind == kLibrary) other = instead_of_library(map_of(*to), name, symbol->st_value);
  }
  return other ? reinterpret_cast<uintptr_t>(other) : symbol->st_value;
}
