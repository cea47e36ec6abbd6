// Reads the symbol tables of loaded objects, with both kinds of hash table, and finds the loader's own functions that
// this program overrides.
#include "base/exports.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <string_view>

#include "base/loader.h"

namespace {
int g_asked = 0;  // how often somebody came to the overrides below
}

extern "C" __attribute__((visibility("default"))) void* dlopen(const char*, int) noexcept {
  ++g_asked;
  return nullptr;
}
extern "C" __attribute__((visibility("default"))) void* dlsym(void*, const char*) noexcept {
  ++g_asked;
  return nullptr;
}

namespace tessera::base {
namespace {

class ExportsOf : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    g_asked = 0;
    void* handle = loader().dlopen(GetParam(), RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(handle, nullptr) << dlerror();
    link_map* map = nullptr;
    ASSERT_EQ(loader().dlinfo(handle, RTLD_DI_LINKMAP, &map), 0);
    exports_ = Exports(map);
  }
  int call(const char* name, const char* version = nullptr) const {
    void* function = exports_.find(name, version);
    return function ? reinterpret_cast<int (*)()>(function)() : -1;
  }
  Exports exports_;
};

TEST_P(ExportsOf, FindsWhatTheObjectDefines) {
  EXPECT_EQ(call("plain"), 1);
  EXPECT_EQ(call("indirect"), 2);
  EXPECT_EQ(exports_.find("puts", nullptr), nullptr);
  EXPECT_EQ(exports_.find("nobody", nullptr), nullptr);
  EXPECT_STREQ(exports_.soname(), "libexported.so");
}

TEST_P(ExportsOf, TakesTheDefaultVersionUnlessOneIsNamed) {
  EXPECT_EQ(call("versioned"), 4);
  EXPECT_EQ(call("versioned", "NEW"), 4);
  EXPECT_EQ(call("versioned", "OLD"), 3);
  EXPECT_EQ(call("versioned", "NONE"), -1);
  EXPECT_EQ(call("withdrawn"), -1);
  EXPECT_EQ(call("withdrawn", "OLD"), 5);
}

TEST_P(ExportsOf, NamesThemAll) {
  int found = 0;
  for (size_t i = 0; i < exports_.count(); ++i) {
    const char* name = exports_.name(i);
    if (name && (std::string_view(name) == "plain" || std::string_view(name) == "calls_another")) ++found;
    EXPECT_STRNE(name, "puts");
  }
  EXPECT_EQ(found, 2);
}

TEST_P(ExportsOf, TheLoaderItselfAnswersWhoeverOverridesIt) {
  EXPECT_EQ(g_asked, 0);
  void* self = loader().dlopen(nullptr, RTLD_NOW);
  ASSERT_NE(self, nullptr);
  EXPECT_EQ(loader().dlsym(self, "dlsym"), reinterpret_cast<void*>(&::dlsym));
  EXPECT_NE(reinterpret_cast<void*>(loader().dlsym), reinterpret_cast<void*>(&::dlsym));
  EXPECT_EQ(g_asked, 0);
}

INSTANTIATE_TEST_SUITE_P(Hashes, ExportsOf, testing::Values(EXPORTED_GNU, EXPORTED_SYSV));

}  // namespace
}  // namespace tessera::base
