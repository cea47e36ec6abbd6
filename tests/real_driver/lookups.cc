// Prints the answers of cuGetProcAddress, in both of its forms: every name that we or a driver knows, every version at
// which an answer may change, every flag. It prints a line per (name, form, flags): the answers by version, a new one
// only at a change.
//
// usage: lookups NEWEST [FILE ...]
// NEWEST: the last version that is asked for, 0: all. FILE: further names, one at the start of each line.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "driver_api/cuda.h"

namespace {

using Lookup = CUresult (*)(const char*, void**, int, cuuint64_t);
using LookupV2 = CUresult (*)(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*);

constexpr struct {
  const char* symbol;
  const char* base;
  int since;
} kRows[] = {
#define TS_CU(symbol, base, since, stream, ret, params, args) {#symbol, #base, since},
#include "driver_api/entries.def"
};
constexpr cuuint64_t kFlags[] = {0, 1, 2, 3, 4};  // the last one is not defined

// The name of the pointer in the library that it points into.
const std::string& name_of(void* p) {
  static auto* known = new std::unordered_map<void*, std::string>;
  auto [at, fresh] = known->try_emplace(p);
  if (fresh) {
    Dl_info where;
    const bool named = p != nullptr && dladdr(p, &where) != 0 && where.dli_saddr == p;
    at->second = p == nullptr ? "null" : named ? where.dli_sname : "unnamed";
  }
  return at->second;
}

std::set<std::string> names(int argc, char** argv) {
  std::set<std::string> found = {"", "cu", "cuNoSuchFunction"};
  for (const auto& row : kRows) found.insert({row.symbol, row.base});
  for (int i = 2; i < argc; ++i) {
    std::ifstream file(argv[i]);
    for (std::string name, rest; file >> name && std::getline(file, rest);) found.insert(name);
  }
  return found;
}

std::set<int> versions(int newest) {
  std::set<int> found = {-1, 0, 1, 99000};
  for (const auto& row : kRows) found.insert({row.since - 1, row.since});
  if (newest != 0) std::erase_if(found, [&](int version) { return version < 0 || version > newest; });
  return found;
}

// `untouched`: what an out-parameter holds if the call left it alone.
std::string said(int result, void* pointer, const void* untouched, int status) {
  std::string text = std::to_string(result) + " " + (pointer == untouched ? "untouched" : name_of(pointer));
  return status < 0 ? text : text + " " + std::to_string(status);
}

template <class Ask>
void print_by_version(const std::string& name, const char* form, cuuint64_t flags, const std::set<int>& when,
                      Ask ask) {
  std::printf("%s %s %d\t", name.c_str(), form, int(flags));
  std::string last;
  for (const int version : when) {
    const std::string answer = ask(version);
    if (answer != last) std::printf("%d: %s; ", version, answer.c_str());
    last = answer;
  }
  std::printf("\n");
}

}  // namespace

int main(int argc, char** argv) {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (driver == nullptr) return 1;
  const auto v1 = reinterpret_cast<Lookup>(dlsym(driver, "cuGetProcAddress"));
  const auto v2 = reinterpret_cast<LookupV2>(dlsym(driver, "cuGetProcAddress_v2"));
  const std::set<int> when = versions(argc > 1 ? std::atoi(argv[1]) : 0);
  const std::set<std::string> all = names(argc, argv);
  std::printf("names\t%zu\n", all.size());
  for (const std::string& name : all) {
    for (const cuuint64_t flags : kFlags) {
      void* untouched = &untouched;
      if (v1 != nullptr)
        print_by_version(name, "first", flags, when, [&](int version) {
          void* p = untouched;
          const int result = v1(name.c_str(), &p, version, flags);
          return said(result, p, untouched, -1);
        });
      if (v2 != nullptr)
        print_by_version(name, "second", flags, when, [&](int version) {
          void* p = untouched;
          auto status = static_cast<CUdriverProcAddressQueryResult>(77);
          const int result = v2(name.c_str(), &p, version, flags, &status);
          return said(result, p, untouched, int(status));
        });
    }
    if (v2 == nullptr) continue;
    // Without a place for the status, in the newest version.
    void* p = nullptr;
    const int result = v2(name.c_str(), &p, *when.rbegin(), 0, nullptr);
    std::printf("%s no status\t%s\n", name.c_str(), said(result, p, &p, -1).c_str());
  }
}
