#include "base/before_libc.h"

#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/scoped_fd.h"

#pragma weak _r_debug  // musl has none

namespace tessera::base {
namespace {

// A program may take its environment away itself, but not its name.
bool libc_has_begun() {
  return environ != nullptr || program_invocation_name[0] != 0;
}

// Null-terminated, never freed; null: the kernel does not say, or there is no memory.
char* kernels_environment(size_t* bytes) {
  const ScopedFd fd(open("/proc/self/environ", O_RDONLY | O_CLOEXEC));
  size_t room = 4096;
  char* text = fd.valid() ? static_cast<char*>(malloc(room)) : nullptr;
  *bytes = 0;
  for (ssize_t n; text && (n = read(fd.get(), text + *bytes, room - 1 - *bytes)) > 0;) {
    *bytes += size_t(n);
    if (*bytes < room - 1) continue;
    char* longer = static_cast<char*>(realloc(text, room *= 2));
    if (!longer) free(text);
    text = longer;
  }
  if (text) text[*bytes] = 0;
  return text;
}

}  // namespace

bool loader_is_binding() {
  return &_r_debug && _r_debug.r_state != r_debug::RT_CONSISTENT && !libc_has_begun();
}

void lend_environment() {
  if (libc_has_begun()) return;
  size_t bytes = 0, count = 0;
  char* const text = kernels_environment(&bytes);
  if (!text) return;
  for (const char* at = text; at < text + bytes; at += strlen(at) + 1) ++count;
  char** const variables = static_cast<char**>(calloc(count + 1, sizeof *variables));
  if (!variables) return;
  char** next = variables;
  for (char* at = text; at < text + bytes; at += strlen(at) + 1) *next++ = at;
  environ = variables;
}

}  // namespace tessera::base
