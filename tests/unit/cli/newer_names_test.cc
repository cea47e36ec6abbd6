// The library that cli/run/newer_names.cc writes, as the loader takes it.
#include "cli/run/newer_names.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/scoped_fd.h"

namespace tessera::cli {
namespace {

class Loaded {
 public:
  explicit Loaded(const std::string& bytes) : file_(memfd_create("newer", 0)) {
    EXPECT_EQ(write(file_.get(), bytes.data(), bytes.size()), ssize_t(bytes.size()));
    handle_ = dlopen(("/proc/self/fd/" + std::to_string(file_.get())).c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!handle_) ADD_FAILURE() << dlerror();
  }
  ~Loaded() { dlclose(handle_); }
  Loaded(const Loaded&) = delete;
  int call(const std::string& name) const {
    const auto function = reinterpret_cast<int (*)()>(dlsym(handle_, name.c_str()));
    return function ? function() : -1;
  }

 private:
  base::ScopedFd file_;
  void* handle_ = nullptr;
};

TEST(NewerNames, EachIsFoundAndAnswersWithoutTheLibraryBehindIt) {
  for (const size_t n : {1, 2, 3, 51, 700}) {
    std::vector<std::string> names;
    for (size_t i = 0; i < n; i++) names.push_back("cuFuture" + std::to_string(i * i));
    const Loaded library(newer_names_library(names));
    for (const std::string& name : names) EXPECT_EQ(library.call(name), 100) << name << " of " << n;
    for (const char* other : {"cuFuture", "cuFuture2", "cuInit", "tessera_unlisted_call"})
      EXPECT_EQ(library.call(other), -1) << other << " of " << n;
  }
}

TEST(NewerNames, AreNotServedWhereTheLoaderEndsProgramsForThem) {
  for (const char* version : {"2.17", "2.31", "1.99", "nonsense", ""})
    EXPECT_FALSE(loader_takes_newer_names(version)) << version;
  for (const char* version : {"2.32", "2.36", "2.41.9000", "3.0"})
    EXPECT_TRUE(loader_takes_newer_names(version)) << version;
}

TEST(NewerNames, AreThoseOfTheDriverAlone) {
  EXPECT_TRUE(newer_names("/nonexistent/libcuda.so.1").empty());
}

}  // namespace
}  // namespace tessera::cli
