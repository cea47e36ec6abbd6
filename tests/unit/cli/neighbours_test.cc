// Libraries between a program and the driver: known by their exports, and said by `tessera run`.
#include "cli/run/neighbours.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "cli/doctor/elf.h"
#include "tests/support/shell.h"

namespace tessera::cli {
namespace {

using test::shell;

Overrides of(const std::vector<std::string>& exported) {
  return overrides_of(exported);
}

TEST(Neighbours, AreKnownByWhatTheyExport) {
  EXPECT_FALSE(of({}).any());
  EXPECT_FALSE(of({"malloc", "cublasCreate_v2", "cuNobodyKnowsThis"}).any());
  EXPECT_EQ(to_text(of({"dlsym"})), "dlsym");
  EXPECT_EQ(to_text(of({"cuInit", "dlsym", "cuMemAlloc_v2"})), "dlsym and 2 of the driver's functions");
  EXPECT_EQ(to_text(of({"cudaMalloc", "cuInit", "dlopen", "dlsym"})),
            "dlsym, dlopen, cudaMalloc and 1 of the driver's functions");
  EXPECT_FALSE(of({"dlsym", "dlopen", "dlerror"}).any()) << "the C library";
  EXPECT_FALSE(of({"cudaMalloc", "__cudaRegisterFatBinary"}).any()) << "CUDA's runtime";
}

TEST(Neighbours, WhatTheySeeFollowsFromPlaceAndOverrides) {
  const auto says = [](const std::vector<std::string>& exported, Order order, const char* text) {
    const std::string meaning = meaning_of(of(exported), order);
    EXPECT_NE(meaning.find(text), std::string::npos) << meaning;
  };
  says({"cuInit"}, Order::kBefore, "sees the program's calls first");
  says({"cuInit"}, Order::kBehind, "sees no call");
  says({"cuInit", "dlsym"}, Order::kBefore, "sees the program's calls first");
  says({"cuInit", "dlsym"}, Order::kBehind, "by dlsym");
  says({"dlsym"}, Order::kBefore, "by dlsym");
  says({"cuInit", "dlopen"}, Order::kBehind, "what programs open");
  says({"cudaMalloc"}, Order::kBehind, "cudaMalloc");
}

TEST(Neighbours, OrderIsTheLoaders) {
  const auto orders = [](const char* variable, const char* list) {
    std::string out;
    for (const Preload& p : preloads(variable, list))
      out += p.entry + (p.order == Order::kBefore ? " before, " : " behind, ");
    return out;
  };
  EXPECT_EQ(orders("", ""), "");
  EXPECT_EQ(orders("/a.so b.so", ""), "/a.so before, b.so before, ");
  EXPECT_EQ(orders("/a.so:/p/libtessera.so:/b.so", "/c.so"), "/a.so before, /b.so behind, /c.so behind, ");
  EXPECT_EQ(orders("/a.so", "/c.so # /d.so\n/e.so"), "/a.so before, /c.so behind, /e.so behind, ");
  EXPECT_EQ(orders("", "/c.so\n/usr/lib/libtessera.so\n/e.so\n"), "/c.so before, /e.so behind, ");
}

TEST(Neighbours, WeakFunctionsAreNoOverrides) {
  const auto exported = exported_functions(TESSERA_INTERPOSER);
  ASSERT_TRUE(exported.ok());
  EXPECT_EQ(to_text(overrides_of(*exported)), "cudaMalloc and 2 of the driver's functions");
  EXPECT_FALSE(exported_functions("/nonexistent").ok());
}

TEST(Neighbours, TheListOfTheLoaderAndToolsAreRead) {
  char folder[] = "/tmp/tessera-neighbours-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const std::string list = std::string(folder) + "/ld.so.preload", tool = std::string(folder) + "/tool.so";
  std::ofstream(list) << TESSERA_INTERPOSER << "\n/nonexistent/libvgpu.so\n";
  std::ofstream(tool) << "a tool's exports do not matter";
  setenv("CUDA_INJECTION64_PATH", tool.c_str(), 1);
  const std::vector<Neighbour> found = neighbours_of_environment(list);
  unsetenv("CUDA_INJECTION64_PATH");
  std::filesystem::remove_all(folder);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].finding,
            std::string(TESSERA_INTERPOSER) +
                " (/etc/ld.so.preload) overrides cudaMalloc and 2 of the driver's functions");
  EXPECT_EQ(found[1].finding, tool + " (CUDA_INJECTION64_PATH) is loaded by the driver");
}

TEST(Neighbours, AKnownFileHasItsName) {
  char folder[] = "/tmp/tessera-neighbours-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const std::string library = std::string(folder) + "/libvgpu.so";
  std::filesystem::copy_file(TESSERA_INTERPOSER, library);
  setenv("LD_PRELOAD", library.c_str(), 1);
  const std::vector<Neighbour> found = neighbours_of_environment("/nonexistent");
  unsetenv("LD_PRELOAD");
  std::filesystem::remove_all(folder);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_NE(found[0].finding.find("libvgpu.so (HAMi-core, LD_PRELOAD) overrides"), std::string::npos)
      << found[0].finding;
}

// The program is linked with the interposer, and finds it by its run path.
TEST(Neighbours, RunNamesThemOnce) {
  const std::string run = std::string(TESSERA_BIN) + " run --gpu soft --socket /tmp/no-such-daemon.sock -- ";
  const auto lines = [](const std::string& text) {
    size_t n = 0;
    for (size_t at = 0; (at = text.find(" overrides ", at)) != std::string::npos; at++) n++;
    return n;
  };
  std::string text = shell(run + TESSERA_NEEDS_INTERPOSER).text;
  EXPECT_EQ(lines(text), 1u) << text;
  EXPECT_NE(text.find("(which the program needs) overrides"), std::string::npos) << text;
  text = shell(std::string("LD_PRELOAD=") + TESSERA_INTERPOSER + " " + run + TESSERA_NEEDS_INTERPOSER).text;
  EXPECT_EQ(lines(text), 1u) << text;
  EXPECT_NE(text.find("(LD_PRELOAD) overrides"), std::string::npos) << text;
  text = shell(run + "sh -c :").text;
  EXPECT_EQ(lines(text), 0u) << text;
}

}  // namespace
}  // namespace tessera::cli
