// `tessera run` is transparent: exit code, signals, environment; and its messages name the remedy.
#include "cli/run/run.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "base/scoped_fd.h"
#include "cli/look/bypass.h"
#include "cli/run/cdi.h"
#include "cli/run/duration.h"
#include "cli/run/library_calls.h"
#include "cli/run/lookups.h"
#include "cli/run/place.h"
#include "cli/run/set.h"
#include "tests/support/shell.h"

namespace tessera::cli {
namespace {

using test::Ended;
using test::shell;

// Nobody listens at this socket and no library is preloaded into the shell itself.
const std::string kRun = std::string(TESSERA_BIN) + " run --gpu soft --socket /tmp/no-such-daemon.sock ";

TEST(ParsePriority, NamesAndNumbers) {
  EXPECT_EQ(*parse_priority("high"), 5u);
  EXPECT_EQ(*parse_priority("best-effort"), 0u);
  EXPECT_EQ(*parse_priority("7"), 7u);
  for (const char* bad : {"8", "-1", "", "highest", "3.5", "77"}) {
    auto priority = parse_priority(bad);
    ASSERT_FALSE(priority.ok()) << bad;
    EXPECT_NE(priority.error().text.find("0..7"), std::string::npos);
  }
}

TEST(Cdi, EveryLevelIsADeviceAndWhatAllNeedIsMounted) {
  Layout layout;
  layout.prefix = "/p";
  layout.preload = "/p/lib/libtessera.so";
  layout.preload_alias = "/p/lib/libtessera_alias.so";
  CdiOptions options;
  options.socket = "/run/there/d.sock";
  const auto text = cdi_specification(options, layout);
  ASSERT_TRUE(text.ok());
  const auto spec = nlohmann::json::parse(*text);
  EXPECT_EQ(spec["kind"], "tessera.dev/gpu");
  ASSERT_EQ(spec["devices"].size(), 9u);
  for (const auto& device : spec["devices"]) {
    const std::string name = device["name"];
    const std::string priority = name == "best-effort" ? "0"
                                 : name == "high"      ? "5"
                                                       : name.substr(name.size() - 1);
    const auto& env = device["containerEdits"]["env"];
    const auto has = [&](const std::string& v) { return std::find(env.begin(), env.end(), v) != env.end(); };
    EXPECT_TRUE(has("TESSERA_PRIORITY=" + priority)) << device;
    EXPECT_TRUE(has("TESSERA_SOCKET=/run/there/d.sock"));
    // The container's own are kept.
    for (const std::string v : env) EXPECT_FALSE(v.starts_with("LD_") || v.starts_with("ASAN_")) << v;
  }
  const auto& mounts = spec["containerEdits"]["mounts"];
  ASSERT_EQ(mounts.size(), 3u);
  EXPECT_EQ(mounts[0]["hostPath"], "/p/lib");
  EXPECT_EQ(mounts[0]["containerPath"], "/usr/lib/tessera/lib");
  EXPECT_EQ(mounts[1]["hostPath"], "/p/lib/ld.so.preload");
  EXPECT_EQ(mounts[1]["containerPath"], "/etc/ld.so.preload");
  EXPECT_EQ(mounts[2]["containerPath"], "/run/there");
  EXPECT_EQ(spec["cdiVersion"], "0.3.0");  // Debian 12's podman takes none after 0.5.0
  options.version = "1.1.0";
  auto newer = nlohmann::json::parse(*cdi_specification(options, layout));
  EXPECT_EQ(newer["cdiVersion"], "1.1.0");
  newer["cdiVersion"] = "0.3.0";
  EXPECT_EQ(newer, spec);
  options.socket = "relative.sock";
  EXPECT_FALSE(cdi_specification(options, layout).ok());
}

// Wherever the host has it.
TEST(Cdi, TheSoftwareGpuIsWhereTheContainerHasIt) {
  CdiOptions options;
  options.gpu = "soft";
  const std::string bin = TESSERA_BIN;
  const auto text = cdi_specification(options, layout_below(bin.substr(0, bin.rfind("/bin/"))));
  ASSERT_TRUE(text.ok());
  EXPECT_NE(text->find("\"TESSERA_DRIVER=/usr/lib/tessera/lib/softgpu/libcuda.so.1\""), std::string::npos);
  EXPECT_NE(text->find("\"LD_LIBRARY_PATH=/usr/lib/tessera/lib/softgpu\""), std::string::npos);
  // Each library that its list names is in the folder that is mounted there.
  std::ifstream list(bin.substr(0, bin.rfind("/bin/")) + "/lib/ld.so.preload");
  const std::string inside = "/usr/lib/tessera";
  int libraries = 0;
  for (std::string path; std::getline(list, path); ++libraries) {
    ASSERT_TRUE(path.starts_with(inside)) << path;
    EXPECT_EQ(why_not_loadable(bin.substr(0, bin.rfind("/bin/")) + path.substr(inside.size())), "");
  }
  EXPECT_EQ(libraries, 3);
}

TEST(ClientEnvironment, AppendsToPreload) {
  setenv("LD_PRELOAD", "/lib/first.so", 1);
  Layout layout;
  layout.preload = "/p/libtessera.so";
  layout.preload_alias = "/p/libtessera_alias.so";
  RunOptions options;
  options.priority = "3";
  options.command = {"/usr/bin/python3", "x.py"};
  auto variables = client_environment(options, layout);
  unsetenv("LD_PRELOAD");
  ASSERT_TRUE(variables.ok());
  const auto has = [&](const std::string& v) {
    return std::find(variables->begin(), variables->end(), v) != variables->end();
  };
  EXPECT_TRUE(has("LD_PRELOAD=/lib/first.so:/p/libtessera.so:/p/libtessera_alias.so"));
  EXPECT_TRUE(has("TESSERA_PRIORITY=3"));
  EXPECT_TRUE(has("TESSERA_NAME=python3"));
  // A program that was started in this way itself; the loader takes spaces, too.
  for (const char* old : {"/lib/first.so:/p/libtessera.so:/p/libtessera_alias.so:/lib/last.so",
                          "/lib/first.so /p/libtessera.so:/p/libtessera_alias.so"}) {
    setenv("LD_PRELOAD", old, 1);
    variables = client_environment(options, layout);
    unsetenv("LD_PRELOAD");
    ASSERT_TRUE(variables.ok());
    EXPECT_TRUE(has(std::string("LD_PRELOAD=") + old));
  }
  options.gpu = "cloud";
  EXPECT_FALSE(client_environment(options, layout).ok());
}

// GCC's AddressSanitizer ends programs whose first library is not its own.
TEST(ClientEnvironment, AddressSanitizerIsToldThatTheOrderIsWell) {
  RunOptions options;
  options.command = {"x"};
  const auto told = [&](const char* before) {
    setenv("ASAN_OPTIONS", before, 1);
    const auto variables = client_environment(options, {});
    unsetenv("ASAN_OPTIONS");
    for (const std::string& v : *variables)
      if (v.starts_with("ASAN_OPTIONS=")) return v;
    return std::string();
  };
  EXPECT_EQ(told(""), "ASAN_OPTIONS=verify_asan_link_order=0");
  EXPECT_EQ(told("detect_leaks=0"), "ASAN_OPTIONS=detect_leaks=0:verify_asan_link_order=0");
  EXPECT_EQ(told("verify_asan_link_order=1"), "");
}

// NVTX loads one tool: ours, which is told of the one that was to be loaded.
TEST(ClientEnvironment, RangesAreHeardOfByNvtxsTool) {
  Layout layout;
  layout.ranges = TESSERA_SOFTGPU_FOLDER "/libcuda.so.1";  // any library
  RunOptions options;
  options.priority = "high";
  options.command = {"x"};
  options.request_ranges = {"decode_step", "engine/prefill"};
  const auto told = [&](const char* before) {
    std::map<std::string, std::string> of_nvtx;
    setenv("NVTX_INJECTION64_PATH", before, 1);
    const auto variables = client_environment(options, layout);
    unsetenv("NVTX_INJECTION64_PATH");
    for (const std::string& v : *variables)
      if (v.find("NVTX") != v.npos || v.find("_RANGES") != v.npos)
        of_nvtx[v.substr(0, v.find('='))] = v.substr(v.find('=') + 1);
    return of_nvtx;
  };
  std::map<std::string, std::string> expected = {{"TESSERA_REQUEST_RANGES", "decode_step\nengine/prefill"},
                                                 {"NVTX_INJECTION64_PATH", layout.ranges}};
  EXPECT_EQ(told(""), expected);
  EXPECT_EQ(told(layout.ranges.c_str()), expected);  // of a program that was started so itself
  expected["TESSERA_NVTX_TOOL"] = "/opt/profiler.so";
  EXPECT_EQ(told("/opt/profiler.so"), expected);
  layout.ranges = "/nonexistent";
  EXPECT_TRUE(told("").empty());
  options.request_ranges.clear();
  EXPECT_TRUE(told("").empty());
  layout.ranges = TESSERA_SOFTGPU_FOLDER "/libcuda.so.1";
  options.yield_ranges = {"background", "warm*"};
  expected = {{"NVTX_INJECTION64_PATH", layout.ranges}, {"TESSERA_YIELD_RANGES", "background\nwarm*"}};
  EXPECT_EQ(told(""), expected);
}

TEST(ClientEnvironment, RangesThatCannotBeKindsAreRefused) {
  RunOptions options;
  options.command = {"x"};
  const auto refused = [&](std::vector<std::string> ranges) {
    options.request_ranges = std::move(ranges);
    return !client_environment(options, {}).ok();
  };
  EXPECT_TRUE(refused({"decode"}));  // of a best-effort program
  options.priority = "high";
  EXPECT_FALSE(refused({"decode"}));
  std::vector<std::string> many;
  for (char c = 'a'; many.size() < 15; c++) many.emplace_back(1, c);
  EXPECT_FALSE(refused(many));
  options.yield_ranges = {"background"};
  EXPECT_TRUE(refused(many));  // of both together
  many.pop_back();
  EXPECT_FALSE(refused(many));
  EXPECT_TRUE(refused({"background"}));  // one of them
  EXPECT_TRUE(refused({"decode", "decode"}));
  options.yield_ranges = {""};
  EXPECT_TRUE(refused({"decode"}));
  options.yield_ranges.clear();
  EXPECT_FALSE(refused({std::string(47, 'x')}));
  for (const std::string& bad : {std::string(), std::string(48, 'x'), std::string("a\nb")})
    EXPECT_TRUE(refused({bad})) << bad;
}

// The third library is added if it is installed and not switched off.
TEST(ClientEnvironment, LibraryCallsAreHeardOfByAThirdLibrary) {
  Layout layout;
  layout.preload = "/p/libtessera.so";
  layout.preload_alias = "/p/libtessera_alias.so";
  RunOptions options;
  options.command = {"x"};
  const auto preloaded = [&](const char* library) {
    layout.preload_ops = library;
    const auto variables = client_environment(options, layout);
    for (const std::string& v : *variables)
      if (v.starts_with("LD_PRELOAD=")) return v;
    return std::string();
  };
  const std::string both = "LD_PRELOAD=/p/libtessera.so:/p/libtessera_alias.so";
  const char* library = TESSERA_SOFTGPU_FOLDER "/libcuda.so.1";  // any
  EXPECT_EQ(preloaded(library), both + ":" + library);
  for (const char* none : {"/nonexistent", "/dev/null", "/", TESSERA_BIN ".none"})
    EXPECT_EQ(preloaded(none), both);
  setenv("TESSERA_OPERATIONS", "0", 1);
  EXPECT_EQ(preloaded(library), both);
  unsetenv("TESSERA_OPERATIONS");
  options.operations = false;
  EXPECT_EQ(preloaded(library), both);
}

TEST(LibraryCalls, OnlyProgramsThatCannotCallCublasGoWithout) {
  ElfFacts program;
  program.needed = {"libcudart.so.13", "libstdc++.so.6", "libm.so.6", "libgcc_s.so.1", "libc.so.6"};
  EXPECT_TRUE(may_call_cublas(program));  // no GPU code: it starts others, or loads them
  program.gpu_code = true;
  EXPECT_FALSE(may_call_cublas(program));
  for (const char* more : {"libcublas.so.13", "libtorch_cuda.so", "libcusolver.so.12", "libcublasLt.so.13"}) {
    program.needed.push_back(more);
    EXPECT_TRUE(may_call_cublas(program)) << more;
    program.needed.pop_back();
  }
  EXPECT_FALSE(may_call_cublas(std::vector<std::string>{TESSERA_TRAINER}));
  for (const char* may :
       {"sh", "/usr/bin/python3", TESSERA_SOURCE_DIR "/scripts/quickstart.sh", "/nonexistent"})
    EXPECT_TRUE(may_call_cublas(std::vector<std::string>{may})) << may;
}

TEST(LibraryCalls, WhoAsksForPiecesIsBelieved) {
  const auto with = [](const std::string& options) {
    return shell(kRun + options + " -- " TESSERA_TRAINER " --help");
  };
  const Ended split = with("--split-operations");
  EXPECT_EQ(split.status, 0) << split.text;
  const Ended both = with("--split-operations --no-operations");
  EXPECT_EQ(WEXITSTATUS(both.status), 2) << both.text;
  EXPECT_NE(both.text.find("give one of them"), std::string::npos) << both.text;
}

// In front of what the user gave, and with room for the program's thread-local storage, unless the user has said how much.
TEST(ClientEnvironment, TheAuditLibraryIsBesideTheUsers) {
  Layout layout;
  const std::string library = TESSERA_SOFTGPU_FOLDER "/libcuda.so.1";  // any
  layout.audit = library;
  RunOptions options;
  options.command = {"x"};
  std::map<std::string, std::string> old;
  const auto value = [&](const std::string& name) {
    const auto get = [](const char* of, void* where) {
      const auto& there = *static_cast<std::map<std::string, std::string>*>(where);
      const auto found = there.find(of);
      return found == there.end() ? std::string() : found->second;
    };
    const auto variables = client_environment(options, layout, get, &old);
    for (const std::string& v : *variables)
      if (v.starts_with(name + "=")) return v.substr(name.size() + 1);
    return std::string("unset");
  };
  EXPECT_EQ(value("LD_AUDIT"), "unset");  // who does not decide by the program
  options.audit = true;
  EXPECT_EQ(value("LD_AUDIT"), library);
  EXPECT_EQ(value("GLIBC_TUNABLES"), "glibc.rtld.optional_static_tls=16384");
  old = {{"LD_AUDIT", "/opt/mine.so"}, {"GLIBC_TUNABLES", "glibc.malloc.perturb=1"}};
  EXPECT_EQ(value("LD_AUDIT"), library + ":/opt/mine.so");
  EXPECT_EQ(value("GLIBC_TUNABLES"), "glibc.malloc.perturb=1:glibc.rtld.optional_static_tls=16384");
  old["GLIBC_TUNABLES"] = "glibc.rtld.optional_static_tls=99";
  EXPECT_EQ(value("GLIBC_TUNABLES"), "unset");
  layout.audit = "/nonexistent";
  EXPECT_EQ(value("LD_AUDIT"), "unset");
}

// As an upgrade replaces a library that programs have.
TEST(Bypass, AFileThatWasReplacedIsOlder) {
  char path[] = "/tmp/tessera-replaced-XXXXXX";
  const base::ScopedFd fd(mkstemp(path));
  ASSERT_EQ(write(fd.get(), "old", 3), 3);
  void* const mapped = mmap(nullptr, 3, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  ASSERT_NE(mapped, MAP_FAILED);
  EXPECT_FALSE(has_older_file(getpid(), path));
  EXPECT_FALSE(has_older_file(getpid(), "/nonexistent"));
  const std::string newer = std::string(path) + ".new";
  std::ofstream(newer) << "new";
  ASSERT_EQ(rename(newer.c_str(), path), 0);
  EXPECT_TRUE(has_older_file(getpid(), path));
  unlink(path);
  munmap(mapped, 3);
}

TEST(Place, TheGpuIsNamedAsTheUserNamesGpus) {
  EXPECT_EQ(device_of("", 1), "1");
  EXPECT_EQ(device_of("1,0", 0), "1");
  EXPECT_EQ(device_of("1,0", 1), "0");
  EXPECT_EQ(device_of("GPU-8932f937,GPU-ab", 1), "GPU-ab");
  EXPECT_EQ(device_of("MIG-2f4b1a00-0000-0000-0000-000000000000", 0),
            "MIG-2f4b1a00-0000-0000-0000-000000000000");
  EXPECT_EQ(device_of("2, 3", 1), " 3");
}

TEST(Place, AGpuWhoseMemoryIsNotKnownIsOne) {
  const auto gpus = visible_gpus(TESSERA_UNIFIED_MEMORY_DRIVER);
  ASSERT_TRUE(gpus.ok());
  ASSERT_EQ(gpus->size(), 3u);
  EXPECT_EQ((*gpus)[0].memory_bytes, 1u << 30);
  EXPECT_EQ((*gpus)[1].memory_bytes, 0u);
  EXPECT_EQ((*gpus)[1].uuid[0], 1);
  EXPECT_FALSE((*gpus)[0].shares_host_memory);
  EXPECT_TRUE((*gpus)[1].shares_host_memory);
  EXPECT_EQ((*gpus)[2].memory_bytes, 1u << 30);
  EXPECT_FALSE((*gpus)[2].shares_host_memory);
  for (size_t i = 0; i < gpus->size(); ++i) EXPECT_EQ((*gpus)[i].holds_host_pages, i == 2) << i;
}

TEST(Place, TheLineSaysWhereTheProgramRunsAndWhetherItsMemoryIsThere) {
  std::vector<VisibleGpu> gpus(2);
  gpus[0].memory_bytes = 1u << 30;  // the other's is not known
  RunOptions options;
  options.memory_bytes = 1u << 20;
  const auto line = [&](const std::string& text) {
    std::string note;
    const auto variable = placement(options, gpus, text, &note);
    return variable.ok() ? *variable + ": " + note : variable.error().text;
  };
  const std::string rows =
      R"("gpus": [{"uuid": "GPU-a", "programs": 1, "memory_fits": false}, {"uuid": "GPU-b"}]})";
  unsetenv("CUDA_VISIBLE_DEVICES");
  EXPECT_EQ(line(R"({"chosen": 1, )" + rows),
            "CUDA_VISIBLE_DEVICES=1: placed on GPU-b (2 of 2), beside 0 programs; how much memory it has is "
            "unknown");
  EXPECT_EQ(line(R"({"chosen": 0, )" + rows),
            "CUDA_VISIBLE_DEVICES=0: placed on GPU-a (1 of 2), beside 1 programs; its memory may not suffice "
            "on any GPU");
  options.memory_bytes = 0;  // then it matters to nobody
  EXPECT_EQ(line(R"({"chosen": 1, )" + rows),
            "CUDA_VISIBLE_DEVICES=1: placed on GPU-b (2 of 2), beside 0 programs");
  for (const char* bad :
       {"", "[]", "{}", R"({"chosen": 2, "gpus": [{}, {}]})", R"({"chosen": 0, "gpus": [{}]})"})
    EXPECT_EQ(line(bad), "tesserad's answer names no GPU") << bad;
}

TEST(Lookups, OldLoadersTellOfParts) {
  for (const char* newer : {"2.35", "2.36", "2.41.9000", "3.0"})
    EXPECT_TRUE(tells_of_all_bindings(newer)) << newer;
  for (const char* older : {"2.34", "2.28", "2.4", "1.40", "", "2", "2.", "x"})
    EXPECT_FALSE(tells_of_all_bindings(older)) << older;
}

// A Python installation as pip makes it, a virtual environment of it, and a link to each.
TEST(Lookups, WhatAnInterpreterCouldImportCounts) {
  namespace fs = std::filesystem;
  char scratch[] = "/tmp/tessera-lookups-XXXXXX";
  ASSERT_NE(mkdtemp(scratch), nullptr);
  const fs::path root = scratch, python = root / "opt/bin/python3", venv = root / "venv/bin/python";
  for (const fs::path& folder : {python.parent_path(), venv.parent_path(), root / "bin"})
    fs::create_directories(folder);
  fs::copy_file("/bin/true", python);
  fs::create_symlink(python, venv);
  fs::create_symlink(python, root / "bin/python");
  std::ofstream(root / "venv/pyvenv.cfg") << "home = /\n";
  std::ofstream(root / "script") << "#!" << venv.string() << "\n";
  fs::permissions(root / "script", fs::perms::owner_all);
  setenv("HOME", (root / "home").c_str(), 1);
  unsetenv("PYTHONPATH");
  const fs::path of_all = root / "opt/lib/python3.12/site-packages",
                 of_venv = root / "venv/lib/python3.12/site-packages";
  fs::create_directories(of_all / "numpy");
  fs::create_directories(of_venv / "onnxruntime");
  EXPECT_EQ(why_looks_up({python}), "");
  EXPECT_EQ(why_looks_up({root / "bin/python"}), "");
  EXPECT_EQ(why_looks_up({venv}), of_venv / "onnxruntime");
  EXPECT_EQ(why_looks_up({root / "script"}), of_venv / "onnxruntime");
  fs::create_directories(of_all / "jaxlib");
  EXPECT_EQ(why_looks_up({python}), of_all / "jaxlib");
  // A script's imports are found in the script.
  const std::string script = root / "train.py";
  std::ofstream(root / "opt/lib/python3.12/json.py");
  std::ofstream(root / "helper.py") << "import numpy, sys\nimport train\n";
  const auto needs_it_with = [&](const std::string& text) {
    std::ofstream(script) << text;
    return why_looks_up({python, "-u", script, "--steps", "3"}) != "";
  };
  const std::string plain =
      "# import jax\nimport torch, json as j\nfrom torch.nn import functional\n  import helper; import "
      "time\n";
  EXPECT_FALSE(needs_it_with(plain));
  EXPECT_FALSE(needs_it_with(""));
  for (const char* more : {"import jax", "import torch, cupy", "if fast: import jax",
                           "from jax.numpy import dot", "import unknown", "import importlib",
                           "m = __import__('ja' + 'x')", "import torch, \\\n  jax", "from . import torch"})
    EXPECT_TRUE(needs_it_with(plain + more + "\n")) << more;
  std::ofstream(root / "helper.py") << "import cupy\n";
  EXPECT_TRUE(needs_it_with(plain));
  EXPECT_EQ(why_looks_up({python, "-m", "torch"}), of_all / "jaxlib");
  EXPECT_EQ(why_looks_up({python, root / "none.py"}), of_all / "jaxlib");
  EXPECT_EQ(why_looks_up({root / "bin/python"}), of_all / "jaxlib");
  fs::remove(of_all / "jaxlib");
  setenv("PYTHONPATH", ("/nonexistent:" + (root / "more").string()).c_str(), 1);
  fs::create_directories(root / "more/cupy");
  EXPECT_EQ(why_looks_up({python}), root / "more/cupy");
  unsetenv("PYTHONPATH");
  EXPECT_EQ(why_looks_up({"/nonexistent"}), "");
  EXPECT_EQ(why_looks_up({"/bin/sh"}), "");
  fs::remove_all(root);
}

// The user's own folders stay first; a program without the library still finds the software GPU's driver.
TEST(ClientEnvironment, TheSoftwareGpuIsBehindTheUsersFolders) {
  setenv("LD_LIBRARY_PATH", "/opt/mine", 1);
  Layout layout;
  layout.softgpu = TESSERA_SOFTGPU_FOLDER;
  RunOptions options;
  options.gpu = "soft";
  options.command = {"x"};
  const auto has = [&](const std::string& v) {
    const auto variables = client_environment(options, layout);
    return variables.ok() && std::find(variables->begin(), variables->end(), v) != variables->end();
  };
  EXPECT_TRUE(has("LD_LIBRARY_PATH=/opt/mine:" TESSERA_SOFTGPU_FOLDER));
  EXPECT_TRUE(has("TESSERA_DRIVER=" TESSERA_SOFTGPU_FOLDER "/libcuda.so.1"));
  options.passthrough = true;
  EXPECT_TRUE(has("LD_LIBRARY_PATH=/opt/mine:" TESSERA_SOFTGPU_FOLDER));
  EXPECT_TRUE(has("LD_PRELOAD=" TESSERA_SOFTGPU_FOLDER "/libcuda.so.1"));
  unsetenv("LD_LIBRARY_PATH");
}

TEST(ClientEnvironment, RequestsHaveDeadlinesByKind) {
  RunOptions options;
  options.priority = "high";
  options.command = {"x"};
  options.request_ranges = {"decode *"};
  const auto told = [&](const char* slo) {
    options.slo = slo;
    const auto variables = client_environment(options, Layout());
    if (!variables.ok()) return "error: " + variables.error().text;
    std::string out;
    for (const std::string& v : *variables)
      if (v.find("_SLO") != v.npos) out += (out.empty() ? "" : " ") + v;
    return out;
  };
  EXPECT_EQ(told("ttft=200ms,tpot=7.5ms"), "TESSERA_REQUEST_SLOS=decode=7500000\nprefill=200000000");
  EXPECT_EQ(told("20ms,decode *=1s"), "TESSERA_SLO_MS=20 TESSERA_REQUEST_SLOS=decode *=1000000000");
  EXPECT_EQ(told("prefill=1s"), "TESSERA_REQUEST_SLOS=prefill=1000000000");
  const std::pair<const char*, const char*> kBad[] = {
      {"ttft=200", "'200' is not a duration"},  {"itl=3ms", "no requests are called 'itl'"},
      {"=3ms", "no requests are called ''"},    {"ttft=3ms,prefill=4ms", "'prefill' has one already"},
      {"tpot=0ms", "no request takes no time"}, {"20ms,30ms", "two durations"},
      {"ttft=3ms,", "not a duration"}};
  for (const auto& [slo, why] : kBad) {
    EXPECT_TRUE(told(slo).starts_with("error: ")) << slo;
    EXPECT_NE(told(slo).find(why), std::string::npos) << told(slo);
  }
  options.priority = "best-effort";
  EXPECT_NE(told("ttft=3ms").find("for protected programs"), std::string::npos);
}

TEST(ClientEnvironment, WeightAndDeadline) {
  RunOptions options;
  options.command = {"x"};
  options.weight = "250";
  options.priority = "high";
  options.slo = "20ms";
  auto variables = client_environment(options, Layout());
  ASSERT_TRUE(variables.ok());
  const auto has = [&](const std::string& v) {
    return std::find(variables->begin(), variables->end(), v) != variables->end();
  };
  EXPECT_TRUE(has("TESSERA_WEIGHT=250"));
  EXPECT_TRUE(has("TESSERA_SLO_MS=20"));
  options.priority = "best-effort";
  EXPECT_FALSE(client_environment(options, Layout()).ok());
  options.priority = "high";
  for (const char* bad : {"1500us", "999us", "0ms", "1.5ms", "20"}) {  // what the library would take for less
    options.slo = bad;
    EXPECT_FALSE(client_environment(options, Layout()).ok()) << bad;
  }
  options.slo.clear();
  for (const char* bad : {"0", "10001", "x", "-1"}) {
    options.weight = bad;
    EXPECT_FALSE(client_environment(options, Layout()).ok()) << bad;
  }
}

TEST(ClientEnvironment, BitStability) {
  RunOptions options;
  options.command = {"x"};
  options.bit_stability = "relaxed";
  auto variables = client_environment(options, Layout());
  ASSERT_TRUE(variables.ok());
  EXPECT_NE(std::find(variables->begin(), variables->end(), "TESSERA_BIT_STABILITY=relaxed"),
            variables->end());
  options.bit_stability = "sloppy";
  EXPECT_FALSE(client_environment(options, Layout()).ok());
}

TEST(ClientEnvironment, OrderDependenceIsAllowedByTheUserOnly) {
  RunOptions options;
  options.command = {"x"};
  for (const bool allow : {false, true}) {
    options.allow_order_dependent = allow;
    auto variables = client_environment(options, Layout());
    ASSERT_TRUE(variables.ok());
    EXPECT_EQ(std::count(variables->begin(), variables->end(), "TESSERA_ALLOW_ORDER_DEPENDENT=1"), allow);
  }
}

TEST(ClientEnvironment, AGangIsOfTheUsersChoice) {
  RunOptions options;
  const auto without = client_environment(options, Layout{});
  ASSERT_TRUE(without.ok());
  for (const std::string& v : *without) EXPECT_FALSE(v.starts_with("TESSERA_GANG")) << v;
  options.gang = "training";
  const auto with = client_environment(options, Layout{});
  ASSERT_TRUE(with.ok());
  EXPECT_NE(std::find(with->begin(), with->end(), "TESSERA_GANG=training"), with->end());
  options.gang = std::string(64, 'x');
  EXPECT_FALSE(client_environment(options, Layout{}).ok());
}

TEST(ClientEnvironment, AMemoryLimitIsOfTheRun) {
  RunOptions options;
  const auto without = client_environment(options, Layout{});
  ASSERT_TRUE(without.ok());
  for (const std::string& v : *without) EXPECT_FALSE(v.starts_with("TESSERA_MEMORY")) << v;
  options.memory_limit_bytes = uint64_t(20) << 30;
  options.memory_group = 7;
  const auto with = client_environment(options, Layout{});
  ASSERT_TRUE(with.ok());
  EXPECT_NE(std::find(with->begin(), with->end(), "TESSERA_MEMORY_LIMIT=21474836480"), with->end());
  EXPECT_NE(std::find(with->begin(), with->end(), "TESSERA_MEMORY_GROUP=7"), with->end());
}

TEST(ClientEnvironment, MemoryIsWaitedForByAsking) {
  RunOptions options;
  options.memory_wait = "10m";
  const auto variables = client_environment(options, Layout{});
  ASSERT_TRUE(variables.ok());
  EXPECT_EQ(std::count(variables->begin(), variables->end(), "TESSERA_MEMORY_WAIT_MS=600000"), 1);
  options.memory_wait = "a while";
  EXPECT_FALSE(client_environment(options, Layout{}).ok());
}

TEST(Duration, WithItsUnit) {
  EXPECT_EQ(*parse_duration_ns("20ms"), 20'000'000u);
  EXPECT_EQ(*parse_duration_ns("1.5s"), 1'500'000'000u);
  EXPECT_EQ(*parse_duration_ns("500us"), 500'000u);
  EXPECT_EQ(*parse_duration_ns("2min"), 120'000'000'000u);
  for (const char* bad : {"20", "", "ms", "-1ms", "1e3ms", "20 ms", "nanms", "infs", "61min", "3hours"})
    EXPECT_FALSE(parse_duration_ns(bad).ok()) << bad;
}

TEST(Set, WhatIsAskedFor) {
  SetOptions options;
  options.target = "4711";
  options.slo = "none";
  options.weight = "50";
  auto request = set_request(options);
  ASSERT_TRUE(request.ok());
  EXPECT_EQ(request->pid, 4711u);
  EXPECT_EQ(request->fields, uint32_t(ipc::abi::kSetsWeight | ipc::abi::kSetsSlo));
  options.target = "trainer";
  options.passthrough = "on";
  request = set_request(options);
  EXPECT_EQ(request->pid, 0u);
  EXPECT_STREQ(request->name, "trainer");
  options.slo = "500ns";  // a lease counts in microseconds: it would be none
  EXPECT_FALSE(set_request(options).ok());
  options.slo = "20ms";
  EXPECT_EQ(set_request(options)->slo_ns, 20'000'000u);
  options.passthrough = "yes";
  EXPECT_FALSE(set_request(options).ok());
  EXPECT_FALSE(set_request({.target = "trainer"}).ok());
}

TEST(Run, ExitCodeIsTheProgramsOwn) {
  const Ended ended = shell(kRun + "-- sh -c 'echo out; exit 42'");
  EXPECT_EQ(WEXITSTATUS(ended.status), 42);
  EXPECT_NE(ended.text.find("out\n"), std::string::npos);
  EXPECT_NE(ended.text.find("runs unmanaged"), std::string::npos) << ended.text;
}

// The library attaches to none in a folder that others can write.
TEST(Run, ADaemonThatTheLibraryRefusesIsNamed) {
  char folder[] = "/tmp/tessera-run-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  ASSERT_EQ(chmod(folder, 0777), 0);
  const Ended ended =
      shell(std::string(TESSERA_BIN) + " run --gpu soft --socket " + folder + "/d.sock -- true");
  rmdir(folder);
  EXPECT_NE(ended.text.find("can be written by others"), std::string::npos) << ended.text;
  EXPECT_NE(ended.text.find("runs unmanaged"), std::string::npos) << ended.text;
}

TEST(Run, WithoutDriverTheProgramRunsWithoutTheLibrary) {
  if (why_no_driver().empty()) GTEST_SKIP() << "this machine has a driver";
  const Ended ended =
      shell(std::string(TESSERA_BIN) + " run -- sh -c 'echo \"preload=$LD_PRELOAD\"; exit 3'");
  EXPECT_EQ(WEXITSTATUS(ended.status), 3);
  EXPECT_NE(ended.text.find("preload=\n"), std::string::npos) << ended.text;
  EXPECT_NE(ended.text.find("--gpu soft"), std::string::npos) << ended.text;
}

TEST(Run, PreloadsWhatHearsLibraryCallsUnlessItIsSwitchedOff) {
  const std::string says = "-- sh -c 'echo \"preload=$LD_PRELOAD\"'";
  const auto is_preloaded = [&](const std::string& words) {
    return shell(words).text.find("/libtessera_ops.so\n") != std::string::npos;
  };
  EXPECT_TRUE(is_preloaded(kRun + says));
  EXPECT_FALSE(is_preloaded(kRun + "--no-operations " + says));
  EXPECT_FALSE(is_preloaded("TESSERA_OPERATIONS=0 " + kRun + says));
}

TEST(Run, TheAuditLibraryIsForWhomItIsKnownOrAskedFor) {
  char scratch[] = "/tmp/tessera-run-XXXXXX";
  ASSERT_NE(mkdtemp(scratch), nullptr);
  const std::string julia = std::string(scratch) + "/julia", script = " -c 'echo \"audit=$LD_AUDIT\"'";
  std::filesystem::copy_file(std::filesystem::canonical("/bin/sh"), julia);
  const auto has_audit = [&](const std::string& words) {
    return shell(kRun + words).text.find("/libtessera_audit.so\n") != std::string::npos;
  };
  EXPECT_FALSE(has_audit("-- sh" + script));
  EXPECT_TRUE(has_audit("--audit -- sh" + script));
  EXPECT_EQ(has_audit("-- " + julia + script), tells_of_all_bindings());
  EXPECT_FALSE(has_audit("--no-audit -- " + julia + script));
  EXPECT_FALSE(has_audit("--audit --passthrough -- sh" + script));
  std::filesystem::remove_all(scratch);
}

TEST(Run, DeathBySignalIsVisible) {
  const Ended ended = shell("exec " + kRun + "-- sh -c 'kill -TERM $$'");
  ASSERT_TRUE(WIFSIGNALED(ended.status));
  EXPECT_EQ(WTERMSIG(ended.status), SIGTERM);
}

TEST(Run, OptionsAfterTheCommandBelongToIt) {
  EXPECT_NE(shell(kRun + "echo --priority 9 -n").text.find("--priority 9 -n"), std::string::npos);
  EXPECT_NE(shell(kRun + "-- echo -- --gpu").text.find("-- --gpu"), std::string::npos);
}

TEST(Run, CommandNotFoundIs127AndSaysSo) {
  const Ended ended = shell(kRun + "-- no-such-command-anywhere");
  EXPECT_EQ(WEXITSTATUS(ended.status), 127);
  EXPECT_NE(ended.text.find("command not found"), std::string::npos);
  EXPECT_EQ(WEXITSTATUS(shell(kRun + "-- /etc/passwd").status), 126);
}

TEST(Run, BadUsageIs2) {
  const Ended ended = shell(kRun + "--priority urgent -- true");
  EXPECT_EQ(WEXITSTATUS(ended.status), 2);
  EXPECT_NE(ended.text.find("0..7"), std::string::npos);
  // The program was not run, so nothing may say that it runs without this or that.
  EXPECT_EQ(ended.text.find("the program runs"), std::string::npos);
  EXPECT_EQ(WEXITSTATUS(shell(kRun).status), 2);
  const Ended unknown = shell(std::string(TESSERA_BIN) + " rnu -- true");
  EXPECT_EQ(WEXITSTATUS(unknown.status), 2);
  EXPECT_NE(unknown.text.find("'rnu' is no command"), std::string::npos);
}

// A result that could not be written is no success: full disk, closed output.
TEST(Output, WhatCannotBeWrittenIsAnError) {
  const std::string tessera = TESSERA_BIN, ptx = TESSERA_SOURCE_DIR "/tests/golden/ptx/s1_grid_sync.ptx",
                    scenario = TESSERA_SOURCE_DIR "/scenarios/load_sweep.toml";
  for (const std::string& command :
       {std::string("--version"), std::string("--help"), "inspect " + ptx, "inspect --json " + ptx,
        "inspect --emit-slice " + ptx, "simulate --seeds 1 --duration-ms 300 " + scenario}) {
    const auto status = [&](const char* output) {
      return WEXITSTATUS(shell("(" + tessera + " " + command + output + ")").status);
    };
    EXPECT_EQ(status(" >/dev/null"), 0) << command;
    EXPECT_EQ(status(" >/dev/full"), 1) << command;
    EXPECT_EQ(status(" >&-"), 1) << command;
  }
  EXPECT_NE(shell("(" + tessera + " --version >/dev/full)").text.find("standard output cannot be written"),
            std::string::npos);
}

// Half a file could be taken for the whole one.
TEST(Output, AFileThatCannotBeWrittenIsLeftEmpty) {
  const std::string folder = ::testing::TempDir(), scenario = TESSERA_SOURCE_DIR "/scenarios/load_sweep.toml";
  for (const char* kind : {"csv", "json"}) {
    const std::string file = folder + "half." + kind;
    const Ended ended = shell("(trap '' XFSZ; ulimit -f 1; " + std::string(TESSERA_BIN) +
                              " simulate --seeds 1 --duration-ms 300 --" + kind + " " + file + " " +
                              scenario + " >/dev/null)");
    EXPECT_EQ(WEXITSTATUS(ended.status), 1) << ended.text;
    EXPECT_NE(ended.text.find("cannot write"), std::string::npos) << ended.text;
    EXPECT_EQ(std::filesystem::file_size(file), 0u);
    std::filesystem::remove(file);
  }
}

// Its records would be lost, and left lying about.
TEST(Profile, AHangupIsTheProgramsToAnswer) {
  const Ended ended = shell("(" + std::string(TESSERA_BIN) +
                            " profile --gpu soft -- sh -c 'trap \"exit 5\" HUP; kill -HUP $PPID; sleep 60 "
                            ">/dev/null 2>&1 & wait')");
  EXPECT_EQ(WEXITSTATUS(ended.status), 5) << ended.text;
}

// A closed descriptor stays closed for the program, and no file of ours takes its place meanwhile.
TEST(Run, ClosedStandardDescriptorsStayClosedForTheProgram) {
  const Ended ended =
      shell("(exec 3>&1; " + kRun + "-- sh -c '{ echo open; } 2>/dev/null || echo closed >&3' >&-)");
  EXPECT_NE(ended.text.find("closed"), std::string::npos) << ended.text;
}

TEST(Usage, NumbersOutOfRangeAreToldShortly) {
  for (const char* usage : {"stop 0", "stop 99999999999999999999", "profile --top -1 -- true",
                            "top --count 1e300", "simulate x --duration-ms 99999999999999999999"}) {
    const Ended ended = shell(std::string(TESSERA_BIN) + " " + usage);
    EXPECT_EQ(WEXITSTATUS(ended.status), 2) << usage;
    EXPECT_LT(ended.text.size(), 200u) << ended.text;
  }
}

TEST(Ps, WithoutDaemonNamesTheRemedy) {
  const Ended ended = shell(std::string(TESSERA_BIN) + " ps --socket /tmp/no-such-daemon.sock");
  EXPECT_EQ(WEXITSTATUS(ended.status), 1);
  EXPECT_NE(ended.text.find("start one with `tesserad`"), std::string::npos);
}

}  // namespace
}  // namespace tessera::cli
