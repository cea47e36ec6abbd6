// libnvidia-ml.so.1 of a driver that keeps limits of memory for control groups, on two GPUs. Its state is one line for each GPU in the
// file that TS_LIMITS names: soft and hard limit, of whatever group is asked for. The second GPU refuses if TS_LIMITS_REFUSE is set.
#include <cstdio>
#include <cstdlib>

namespace {

constexpr int kSuccess = 0, kNotSupported = 3;
constexpr unsigned kGpus = 2;
struct Limit {
  unsigned long long soft = 0, hard = ~0ull;
};
Limit g_limits[kGpus];

void load() {
  FILE* file = fopen(getenv("TS_LIMITS"), "r");
  for (Limit& limit : g_limits)
    if (!file || fscanf(file, "%llu %llu", &limit.soft, &limit.hard) != 2) limit = {};
  if (file) fclose(file);
}
void store() {
  FILE* file = fopen(getenv("TS_LIMITS"), "w");
  for (const Limit& limit : g_limits) fprintf(file, "%llu %llu\n", limit.soft, limit.hard);
  fclose(file);
}

struct ToSet {
  const char* group;
  unsigned long long soft, hard;
};
struct AsItIs {
  const char* group;
  unsigned long long soft, hard, used;
};

}  // namespace

#pragma GCC visibility push(default)
extern "C" {
int nvmlInit_v2() {
  load();
  return kSuccess;
}
int nvmlDeviceGetCount_v2(unsigned* n) {
  *n = kGpus;
  return kSuccess;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  *device = &g_limits[index];
  return kSuccess;
}
int nvmlDeviceGetMemoryLimits_v1(void* device, AsItIs* limits) {
  const Limit& limit = *static_cast<Limit*>(device);
  if (device == &g_limits[1] && getenv("TS_LIMITS_REFUSE")) return kNotSupported;
  limits->soft = limit.soft;
  limits->hard = limit.hard;
  return kSuccess;
}
int nvmlDeviceSetMemoryLimits_v1(void* device, ToSet* limits) {
  *static_cast<Limit*>(device) = {limits->soft, limits->hard};
  store();
  return kSuccess;
}
const char* nvmlErrorString(int) {
  return "Not Supported";
}
}
