// cuGetProcAddress of every name in the table, in every version at which an answer may change and every
// stream flavour, through both of its forms: result, status, and the exported name of what came back. With
// "owner" as argument: in how many different files the answers for hooked and for other names live.
#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "driver_api/cuda.h"
#include "tests/conformance/programs/print.h"

namespace {

using Lookup = CUresult (*)(const char*, void**, int, cuuint64_t);
using LookupV2 = CUresult (*)(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*);

struct Row {
  const char* base;
  int since;
};
constexpr Row kRows[] = {
#define TS_CU(symbol, base, since, stream, ret, params, args) {#base, since},
#include "driver_api/entries.def"
};

const char* name_of(void* p) {
  Dl_info where;
  if (p == nullptr) return "null";
  return dladdr(p, &where) != 0 && where.dli_sname != nullptr && where.dli_saddr == p ? where.dli_sname
                                                                                      : "unnamed";
}

std::string file_of(void* p) {
  Dl_info where;
  const std::string path = p != nullptr && dladdr(p, &where) != 0 ? where.dli_fname : "";
  return path.substr(path.rfind('/') + 1);
}

}  // namespace

int main(int argc, char** argv) {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (driver == nullptr) return 1;
  const auto v1 = reinterpret_cast<Lookup>(dlsym(driver, "cuGetProcAddress"));
  const auto v2 = reinterpret_cast<LookupV2>(dlsym(driver, "cuGetProcAddress_v2"));
  if (argc > 1 && std::strcmp(argv[1], "owner") == 0) {
    for (const char* name : {"cuLaunchKernel", "cuGetProcAddress", "cuDeviceGetName", "cuGetExportTable"}) {
      void* p = nullptr;
      v2(name, &p, 13000, 0, nullptr);
      std::printf("%s in %s, %s\n", name, file_of(p).c_str(),
                  p == dlsym(driver, name) ? "as dlsym" : "not dlsym's");
    }
    return 0;
  }
  std::set<std::string> bases;
  for (const Row& row : kRows) bases.insert(row.base);
  for (const std::string& base : bases) {
    std::set<int> versions = {0, 13000, 99000};
    for (const Row& row : kRows)
      if (base == row.base) versions.insert({row.since - 1, row.since});
    for (const int version : versions) {
      for (const cuuint64_t flags : {0, 1, 2}) {
        void* a = &versions;
        void* b = &versions;
        auto status = static_cast<CUdriverProcAddressQueryResult>(77);
        const int first = v1(base.c_str(), &a, version, flags);
        const int second = v2(base.c_str(), &b, version, flags, &status);
        std::printf("%s %d %d: %d %s | %d %d %s\n", base.c_str(), version, int(flags), first, name_of(a),
                    second, int(status), name_of(b));
      }
    }
  }
  // The runtime and careless programs ask like this.
  void* p = nullptr;
  auto status = static_cast<CUdriverProcAddressQueryResult>(77);
  SAY(v2("", &p, 0, 0, nullptr));
  SAY(v2("cuNoSuchFunction", &p, 13000, 0, &status));
  std::printf("%s %d\n", name_of(p), int(status));
  SAY(v2(nullptr, &p, 13000, 0, &status));
  SAY(v2("cuInit", nullptr, 13000, 0, &status));
  SAY(v2("cuInit", &p, 13000, 4, &status));
  SAY(v1("cuInit", &p, 13000, 0));
  std::printf("%s, second use ", name_of(p));
  // A pointer that was handed out works, and works for a lookup through itself.
  SAY(reinterpret_cast<CUresult (*)(unsigned)>(p)(0));
  SAY(v2("cuGetProcAddress", &p, 12000, 0, &status));
  void* q = nullptr;
  SAY(reinterpret_cast<LookupV2>(p)("cuGetProcAddress", &q, 12000, 0, &status));
  std::printf("itself again: %d\n", p == q);
}
