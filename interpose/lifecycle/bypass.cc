// A program that opens the driver by its path gets the driver's own functions: nothing of it comes through
// here. Two things tell. Before our first call, any driver that is loaded was opened by somebody else. At our
// first call, one that is loaded already was, too. Opened later it is not seen: the loader maps a file once.
// A second installation of Tessera in the process is never called, for the first one is: it has nothing to tell.
// With libtessera_audit.so its calls come here, but those of a second driver, of which the audit library tells.
#include <dlfcn.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>

#include <atomic>

#include "base/loader.h"
#include "base/raw_log.h"
#include "interpose/audit/contract.h"
#include "interpose/lifecycle/lifecycle.h"

namespace tessera::lifecycle {
namespace {

constinit std::atomic<bool> g_bypassed{false}, g_told{false};

bool past_the_audit_library() {
  return std::atomic_ref(tessera_audit_driver.passed_by).load(std::memory_order_relaxed) != 0;
}
bool audit_library_serves() {
  return std::atomic_ref(tessera_audit_driver.active).load(std::memory_order_relaxed) != 0 &&
         !past_the_audit_library();
}

// The loader binds the driver's names to the first library that has them.
bool behind_another_installation() {
  const base::Loader loader = base::loader();
  const void* first = loader.dlsym(RTLD_DEFAULT, "tessera_shim_marker");
  Dl_info of_first, own;
  return first && loader.dladdr(first, &of_first) != 0 && loader.dladdr(&g_told, &own) != 0 &&
         of_first.dli_fbase != own.dli_fbase;
}

// Relies on our own file not being called so (it is libtessera.so; libcuda.so.1 is its SONAME only). Past the audit
// library goes only another driver than ours.
int is_driver(dl_phdr_info* object, size_t, void* found) {
  const char* slash = strrchr(object->dlpi_name, '/');
  if (!slash || strncmp(slash, "/libcuda.so", sizeof "/libcuda.so" - 1) != 0) return 0;
  const link_map* ours = tessera_audit_driver.driver;
  if (past_the_audit_library() && ours && strcmp(ours->l_name, object->dlpi_name) == 0) return 0;
  *static_cast<const char**>(found) = object->dlpi_name;
  return 1;
}

}  // namespace

void note_bypass() {
  g_bypassed.store(true, std::memory_order_relaxed);  // a fact of its own
}
bool bypassed() {
  return g_bypassed.load(std::memory_order_relaxed) || past_the_audit_library();
}

void tell_bypass() {
  const char* asked = getenv("TESSERA_RUN");
  if (!asked || strcmp(asked, "1") != 0 || audit_library_serves() || behind_another_installation() ||
      g_told.exchange(true))
    return;
  const char* driver = nullptr;
  dl_iterate_phdr(is_driver, &driver);
  if (driver)
    base::raw_log(base::LogLevel::kAsked,
                  "driver calls of this program do not pass through Tessera: it opened %.300s by its path%s",
                  driver,
                  past_the_audit_library() ? ", and it is not the driver that Tessera opened"
                                           : "; tessera run --audit serves it");
}

}  // namespace tessera::lifecycle
