#include "interpose/lifecycle/host_room.h"

#include <linux/limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>

namespace tessera::lifecycle {
namespace {

// The number behind `key` in a small file, times `unit`; UINT64_MAX: it is not there. "max" is not a number.
uint64_t number_in(const char* path, const char* key, uint64_t unit) {
  char text[4096];
  FILE* file = fopen(path, "re");
  if (!file) return UINT64_MAX;
  const size_t n = fread(text, 1, sizeof text - 1, file);
  fclose(file);
  text[n] = 0;
  const char* at = strstr(text, key);
  if (!at) return UINT64_MAX;
  char* end = nullptr;
  const uint64_t value = strtoull(at + strlen(key), &end, 10);
  return end == at + strlen(key) ? UINT64_MAX : value * unit;
}

struct Hierarchy {
  const char* controller;  // as /proc/self/cgroup names it
  const char* mounted_at;
  const char *most, *used;  // files of a group
  const char* droppable;    // line of memory.stat: page cache that nobody used lately
};
constexpr Hierarchy kHierarchies[] = {
    {"", "/sys/fs/cgroup", "memory.max", "memory.current", "\ninactive_file "},
    {"memory", "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
     "\ntotal_inactive_file "},
};

uint64_t room_in_group(const char* folder, const Hierarchy& h) {
  char path[PATH_MAX];
  const auto number = [&](const char* file, const char* key) {
    return size_t(snprintf(path, sizeof path, "%s/%s", folder, file)) < sizeof path ? number_in(path, key, 1)
                                                                                    : UINT64_MAX;
  };
  const uint64_t most = number(h.most, ""), used = number(h.used, "");
  if (most == UINT64_MAX || used == UINT64_MAX) return UINT64_MAX;
  const uint64_t droppable = number("memory.stat", h.droppable);
  const uint64_t kept = droppable == UINT64_MAX ? used : used - std::min(used, droppable);
  return most - std::min(most, kept);
}

// In a container the path is sometimes the host's, which is not there: then the root alone says something.
uint64_t room_in_hierarchy(const char* root, const char* group, const Hierarchy& h) {
  char folder[PATH_MAX];
  const int base = snprintf(folder, sizeof folder, "%s%s", root, h.mounted_at);
  const int n = snprintf(folder, sizeof folder, "%s%s%s", root, h.mounted_at, group);
  if (n < 0 || size_t(n) >= sizeof folder) return UINT64_MAX;
  uint64_t room = UINT64_MAX;
  for (;;) {
    room = std::min(room, room_in_group(folder, h));
    char* slash = strrchr(folder, '/');
    if (!slash || slash < folder + base) return room;
    *slash = 0;
  }
}

bool has_word(const char* list, const char* end, const char* word) {
  const size_t n = strlen(word);
  for (const char* at = list;; ++at) {
    const char* comma = static_cast<const char*>(memchr(at, ',', size_t(end - at)));
    const char* until = comma ? comma : end;
    if (size_t(until - at) == n && memcmp(at, word, n) == 0) return true;
    if (!comma) return false;
    at = comma;
  }
}

uint64_t room_in_groups(const char* root) {
  char path[PATH_MAX], line[PATH_MAX + 64];  // "number:controller,controller:/group"
  snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
  FILE* file = fopen(path, "re");
  if (!file) return UINT64_MAX;
  uint64_t room = UINT64_MAX;
  while (fgets(line, sizeof line, file)) {
    line[strcspn(line, "\n")] = 0;
    const char* controllers = strchr(line, ':');
    const char* group = controllers ? strchr(controllers + 1, ':') : nullptr;
    if (!group) continue;
    for (const Hierarchy& h : kHierarchies)
      if (has_word(controllers + 1, group, h.controller))
        room = std::min(room, room_in_hierarchy(root, group + 1, h));
  }
  fclose(file);
  return room;
}

}  // namespace

uint64_t host_room_bytes(const char* root) {
  char path[PATH_MAX];
  snprintf(path, sizeof path, "%s/proc/meminfo", root);
  return std::min(number_in(path, "MemAvailable:", 1024), room_in_groups(root));
}

}  // namespace tessera::lifecycle
