// `tessera ptxas` against the toolkit's own ptxas: the same but for the PTX beside the machine code.
#include "cli/run/ptxas.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>

#include "cli/run/keep_ptx.h"
#include "cli/run/proved_variants.h"
#include "kernels/image/image.h"
#include "kernels/image/origin.h"
#include "tests/support/shell.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;

constexpr char kReal[] = PTXAS;
constexpr char kPtx[] = FIXTURES "/kernels.ptx";  // of compute_75
constexpr char kProgram[] = TESSERA_PTXAS_BIN;
const std::string kOurs = kProgram;

Bytes read(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return Bytes(std::istreambuf_iterator<char>(in), {});
}

// A folder that is gone afterwards, and is the working folder of nothing.
class Ptxas : public testing::Test {
 protected:
  Ptxas() {
    char name[] = "/tmp/tessera-ptxas-XXXXXX";
    folder_ = mkdtemp(name);
  }
  ~Ptxas() override { fs::remove_all(folder_); }
  std::string in_folder(const std::string& name) const { return folder_ + "/" + name; }
  // PTXAS, then the arguments, in the folder.
  test::Ended run(const std::string& ptxas, const std::string& arguments) const {
    return test::shell("cd " + folder_ + " && " + ptxas + " " + arguments);
  }
  std::string script(const std::string& name, const std::string& text) const {
    std::ofstream(in_folder(name)) << "#!/bin/sh\n" << text << "\n";
    fs::permissions(in_folder(name), fs::perms::owner_all);
    return in_folder(name);
  }

  std::string folder_;
};

TEST_F(Ptxas, TheMachineCodeOfTheRealOneAndThePtx) {
  ASSERT_EQ(run(kReal, std::string("-arch=sm_75 -o real ") + kPtx).status, 0);
  for (const char* output : {"-o ours", "-o=ours", "--output-file ours", "--output-file=ours"}) {
    fs::remove(in_folder("ours"));
    ASSERT_EQ(run(kOurs, std::string("-arch=sm_75 ") + output + " " + kPtx).status, 0);
    const auto entries = image::read(read(in_folder("ours")));
    ASSERT_TRUE(entries.ok()) << output;
    ASSERT_EQ(entries->size(), 2u);
    Bytes real = read(in_folder("real"));
    real.resize((real.size() + 7) & ~size_t{7});  // as it lies in a container
    EXPECT_EQ((*entries)[0].payload, real);
    EXPECT_EQ((*entries)[0].sm, 75u);
    EXPECT_EQ((*entries)[1].payload, read(kPtx));
    const std::vector<image::Entry> listed(entries->begin(), entries->end());
    EXPECT_EQ(image::choose(listed, 75), &listed[0]) << "a driver takes the machine code";
    EXPECT_EQ(image::source_of(listed, listed[0], (*entries)[0].payload), &listed[1])
        << "the slicer finds the PTX";
  }
  EXPECT_EQ(test::shell(std::string(TESSERA_BIN) + " inspect --gpu sm_75 --kernel accepted_half " +
                        in_folder("ours"))
                .text,
            "accepted_half: can be cut\n");
}

// A kernel with approximations and a fused product: its variant is compiled, too, and proved.
TEST_F(Ptxas, ProvedVariantsBehindThePtx) {
  const Bytes ptx = read(PROOF_PTX);
  for (const char* target : {"sm_80", "sm_90", "sm_100", "sm_120"}) {
    const std::string arguments = std::string("-v -arch=") + target + " -o ours " + PROOF_PTX;
    const auto real = run(kReal, arguments);
    const Bytes machine_code = read(in_folder("ours"));
    const auto ours = run(kOurs, arguments);
    EXPECT_EQ(ours.status, 0);
    const auto without_times = [](std::string text) {
      return std::regex_replace(text, std::regex("[0-9.]+ ms"), "");
    };
    EXPECT_EQ(without_times(ours.text), without_times(real.text)) << "of the variants nothing is told";
    const auto entries = image::read(read(in_folder("ours")));
    ASSERT_TRUE(entries.ok());
    ASSERT_EQ(entries->size(), 2u);
    const Bytes &code = (*entries)[0].payload, &text = (*entries)[1].payload;
    EXPECT_TRUE(std::equal(machine_code.begin(), machine_code.end(), code.begin()));
    EXPECT_TRUE(std::equal(ptx.begin(), ptx.end(), text.begin()));
    const auto proved =
        cache::proved_in({reinterpret_cast<const char*>(text.data()), text.size()},
                         cache::proved_key({reinterpret_cast<const char*>(code.data()), code.size()}));
    ASSERT_TRUE(proved.ok()) << target << ": " << proved.error().text;
    // All seven, but `lanes` for sm_80: there the compiler asks whether lanes are together (BRA.DIV), which is not known.
    ASSERT_EQ(proved->size(), target == std::string("sm_80") ? 6u : 7u) << target;
    EXPECT_EQ((*proved)[0].kernel, "elements");
    EXPECT_LE(read(in_folder("ours")).size(), 2 * (machine_code.size() + ptx.size()));
    // The original's own kernel is no variant of itself.
    std::vector<CompiledVariant> wrong(1);
    wrong[0].kernel = "elements";
    wrong[0].code.assign(code.begin(), code.end());
    EXPECT_TRUE(prove_variants(code, wrong, 1 << 20).variants.empty());
  }
}

TEST_F(Ptxas, TheCompilerHasHugePagesUnlessTheUserHasSetSomething) {
  const std::string real =
      script("real", std::string("echo \"$GLIBC_TUNABLES\" >seen\nexec ") + kReal + " \"$@\"");
  for (const std::string set : {"", "glibc.malloc.check=0"}) {
    const std::string variables =
        "TESSERA_PTXAS=" + real + (set.empty() ? " env -u GLIBC_TUNABLES " : " GLIBC_TUNABLES=" + set + " ");
    ASSERT_EQ(run(variables + kOurs, std::string("-arch=sm_75 -o ours ") + kPtx).status, 0);
    const Bytes seen = read(in_folder("seen"));
    const std::string text(seen.begin(), seen.end());
    EXPECT_EQ(text, set.empty() ? "glibc.malloc.hugetlb=1:glibc.malloc.top_pad=33554432\n" : set + "\n");
  }
}

TEST_F(Ptxas, TargetsOfOneGpuOnly) {
  std::ofstream(in_folder("a.ptx"))
      << ".version 8.0\n.target sm_90a\n.address_size 64\n.visible .entry k() { ret; }\n";
  ASSERT_EQ(run(kOurs, "--gpu-name=sm_90a a.ptx -o a").status, 0);
  const auto entries = image::read(read(in_folder("a")));
  ASSERT_TRUE(entries.ok());
  ASSERT_EQ(entries->size(), 2u);
  EXPECT_TRUE((*entries)[0].arch_specific);
  EXPECT_TRUE((*entries)[1].arch_specific);
}

// The same status, messages and bytes where there is nothing to add.
TEST_F(Ptxas, EverythingElseIsTheRealOnes) {
  const std::string ptx = kPtx;
  std::ofstream(in_folder("bad.ptx")) << "no PTX\n";
  std::ofstream(in_folder("options")) << "-arch=sm_75 -o out\n";
  for (const std::string& arguments :
       {std::string("--version"), std::string("--help"), std::string(), std::string("--no-such-option"),
        std::string("-arch=sm_75 bad.ptx -o out"), std::string("-arch=sm_75 /no/such.ptx -o out"),
        "-arch=sm_20 " + ptx + " -o out",  // a target that it does not know
        "-arch=sm_75 -c -o out " + ptx,    // an object: nvlink wants it
        "-arch=sm_75 " + ptx,              // to elf.o, which nobody named
        "-arch=sm_80 -o out " + ptx,       // the PTX is of another virtual architecture
        "-arch=sm_75 -o out - < " + ptx, "-optf options " + ptx,
        "-arch=sm_75 -o /no/such/folder/out " + ptx}) {
    const auto real = run(kReal, arguments);
    const auto real_bytes = std::pair(read(in_folder("out")), read(in_folder("elf.o")));
    fs::remove(in_folder("out"));
    fs::remove(in_folder("elf.o"));
    const auto ours = run(kOurs, arguments);
    EXPECT_EQ(ours.status, real.status) << arguments;
    EXPECT_EQ(ours.text, real.text) << arguments;
    if (arguments.find("sm_80") == std::string::npos) {
      EXPECT_EQ(std::pair(read(in_folder("out")), read(in_folder("elf.o"))), real_bytes) << arguments;
    }
    fs::remove(in_folder("out"));
    fs::remove(in_folder("elf.o"));
  }
}

TEST_F(Ptxas, TheRealOneIsWhoeverWasNamedAndNeverUs) {
  const std::string ours = in_folder("ptxas");
  fs::create_symlink(kProgram, ours);
  // First in PATH, as in the folder for XLA: the next one is meant.
  EXPECT_EQ(test::shell("PATH=" + folder_ + ":$PATH ptxas --version").text, run(kReal, "--version").text);
  script("tessera-ptxas", "echo of another installation");
  EXPECT_EQ(test::shell("PATH=" + folder_ + ":$PATH " + kOurs + " --version").text,
            run(kReal, "--version").text);
  const auto itself = test::shell("TESSERA_PTXAS=" + ours + " " + ours + " --version");
  EXPECT_EQ(WEXITSTATUS(itself.status), 127);
  EXPECT_NE(itself.text.find("TESSERA_PTXAS=" + ours), std::string::npos) << itself.text;
  const std::string loop = script("loop", "exec " + ours + " \"$@\"");
  EXPECT_EQ(WEXITSTATUS(test::shell("TESSERA_PTXAS=" + loop + " " + ours + " --version").status), 127);
  const std::string named = script("named", "echo \"$# $2\"; exit 7");
  const auto ended = test::shell("TESSERA_PTXAS=" + named + " " + kOurs + " -v 'a b' c");
  EXPECT_EQ(ended.text, "3 a b\n");
  EXPECT_EQ(WEXITSTATUS(ended.status), 7);
}

TEST_F(Ptxas, ASignalEndsUsToo) {
  const std::string crashes = script("crashes", "kill -SEGV $$");
  const std::string command = kOurs + " " + kPtx + " -o " + in_folder("out");
  const pid_t child = fork();
  if (child == 0) {
    setenv("TESSERA_PTXAS", crashes.c_str(), 1);
    execl(TESSERA_BIN, "tessera", "ptxas", kPtx, "-o", in_folder("out").c_str(), nullptr);
    _exit(1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGSEGV);
}

TEST_F(Ptxas, OnlyOneFileBecomesOneFile) {
  const std::string ptx = kPtx;
  EXPECT_EQ(ptxas_files({"-v", ptx, "-o", "out"})->input, ptx);
  EXPECT_EQ(ptxas_files({"-o", "out", ptx})->output, "out");
  EXPECT_FALSE(ptxas_files({ptx}).has_value());
  EXPECT_FALSE(ptxas_files({"-o", "out"}).has_value());
  EXPECT_FALSE(ptxas_files({ptx, ptx, "-o", "out"}).has_value());
  EXPECT_FALSE(ptxas_files({ptx, "-o"}).has_value());
  EXPECT_FALSE(ptxas_files({ptx, "-o", "out", "-optf", "more"}).has_value());
  for (const char* fmad : {"--fmad=false", "-fmad=false"})
    EXPECT_EQ(ptxas_files({fmad, "-O3", ptx, "-o", "out"})->options, " --fmad false ");
  EXPECT_EQ(ptxas_files({"--fmad", "false", "--opt-level", "0", ptx, "-o", "out"})->options,
            " --fmad false -O0  ");
  EXPECT_EQ(ptxas_files({"-O1", ptx, "-o", "out"})->options, "-O1  ");
  EXPECT_EQ(ptxas_files({"--fmad=true", "-v", ptx, "-o", "out"})->options, "");
  EXPECT_FALSE(with_ptx(read(kPtx), read(kPtx)).ok());
  EXPECT_FALSE(with_ptx(read(FIXTURES "/kernels.cubin"), Bytes{}).ok());
}

// nvcc puts what ptxas writes into fat binaries and wants machine code there.
TEST_F(Ptxas, NvccGetsWhatItAlwaysGets) {
  std::ofstream(in_folder("k.cu")) << "__global__ void k(int* p) { *p = 1; }\n";
  const auto kept = keep_ptx(
      kProgram,
      [](const char* name, void* folder) {
        return std::string(name) == "TESSERA_CACHE_DIR" ? *static_cast<std::string*>(folder) : std::string();
      },
      &folder_);
  ASSERT_TRUE(kept.ok());
  const std::string flags = kept->variables.back();
  const size_t at = flags.find("data_dir=") + 9;
  const std::string toolkit = flags.substr(at, flags.find(' ', at) - at);
  ASSERT_TRUE(fs::exists(toolkit + "/nvvm"));
  const auto ended = run(toolkit + "/bin/nvcc", "-arch=sm_90 -cubin -o k.cubin k.cu");
  EXPECT_EQ(ended.status, 0) << ended.text;
  const auto entries = image::list(read(in_folder("k.cubin")));
  ASSERT_TRUE(entries.ok());
  EXPECT_EQ(entries->size(), 1u);
}

TEST_F(Ptxas, WhatTheUserHasSetIsLeftAlone) {
  std::map<std::string, std::string> environment = {{"TESSERA_CACHE_DIR", folder_}};
  const auto look = [](const char* name, void* of) {
    auto& variables = *static_cast<std::map<std::string, std::string>*>(of);
    const auto found = variables.find(name);
    return found == variables.end() ? std::string() : found->second;
  };
  const auto has = [](const KeptPtx& kept, const std::string& start) {
    return std::ranges::any_of(kept.variables, [&](const std::string& v) { return v.starts_with(start); });
  };
  auto kept = keep_ptx(kProgram, look, &environment);
  ASSERT_TRUE(kept.ok());
  EXPECT_TRUE(kept->notes.empty());
  for (const char* start : {"TRITON_PTXAS_PATH=/", "TRITON_PTXAS_BLACKWELL_PATH=/", "TRITON_CACHE_DIR=/",
                            "TORCHINDUCTOR_CACHE_DIR=/", "XLA_FLAGS=--xla_gpu_cuda_data_dir=/"})
    EXPECT_TRUE(has(*kept, start)) << start;
  // One client that starts another has set all of them.
  auto nested = environment;
  for (const std::string& v : kept->variables) nested[v.substr(0, v.find('='))] = v.substr(v.find('=') + 1);
  const auto again = keep_ptx(kProgram, look, &nested);
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE(again->variables.empty());
  EXPECT_TRUE(again->notes.empty());
  environment["TRITON_PTXAS_PATH"] = "/mine";
  environment["XLA_FLAGS"] = "--xla_gpu_cuda_data_dir=/mine";
  kept = keep_ptx(kProgram, look, &environment);
  EXPECT_EQ(kept->notes.size(), 2u);
  EXPECT_FALSE(has(*kept, "TRITON_PTXAS_PATH"));
  EXPECT_FALSE(has(*kept, "XLA_FLAGS"));
  environment["XLA_FLAGS"] = "--xla_dump_to=/there";
  EXPECT_TRUE(has(*keep_ptx(kProgram, look, &environment),
                  "XLA_FLAGS=--xla_dump_to=/there --xla_gpu_cuda_data_dir="));
  // A folder that others may write to gets no program of ours.
  fs::permissions(in_folder("keep-ptx"), fs::perms::all);
  EXPECT_FALSE(keep_ptx(kProgram, look, &environment).ok());
  fs::permissions(in_folder("keep-ptx"), fs::perms::owner_all);
}

TEST_F(Ptxas, RunSetsTheVariables) {
  const auto ended = test::shell("TESSERA_CACHE_DIR=" + folder_ + " TRITON_CACHE_DIR=/mine " + TESSERA_BIN +
                                 " run --passthrough --keep-ptx -- sh -c '$TRITON_PTXAS_PATH --version'");
  EXPECT_EQ(ended.status, 0);
  EXPECT_NE(ended.text.find("TRITON_CACHE_DIR=/mine is left as it is"), std::string::npos) << ended.text;
  EXPECT_NE(ended.text.find(run(kReal, "--version").text), std::string::npos) << ended.text;
}

}  // namespace
}  // namespace tessera::cli
