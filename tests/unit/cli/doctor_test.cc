// `tessera doctor`: each check finds what it is for, and says what to do.
#include "cli/doctor/doctor.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/doctor/elf.h"
#include "cli/look/client_table.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;

// In this program's data: a driver that is opened by its path.
const volatile char kByPath[] = "/opt/driver/libcuda.so.1";

class Doctor : public ::testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/tessera-doctor-XXXXXX";
    ASSERT_NE(mkdtemp(folder), nullptr);
    folder_ = folder;
    const std::string bin = TESSERA_BIN, prefix = bin.substr(0, bin.rfind("/bin/"));
    layout_ = layout_below(prefix);
    options_.gpu = "soft";
    options_.socket = folder_ + "/nobody.sock";
  }
  void TearDown() override { fs::remove_all(folder_); }
  void write(const std::string& name, const std::string& text, mode_t mode = 0644) {
    fs::create_directories(fs::path(folder_ + "/" + name).parent_path());
    std::ofstream(folder_ + "/" + name) << text;
    ASSERT_EQ(chmod((folder_ + "/" + name).c_str(), mode), 0);
  }
  Finding machine(const std::string& check) {
    return find(
        examine_machine(options_, layout_, {folder_ + "/proc", folder_ + "/sys", folder_ + "/dev", folder_}),
        check);
  }
  Finding program(const std::string& command, const std::string& check) {
    options_.command = {command};
    return find(examine_program(options_, layout_), check);
  }
  static Finding find(const std::vector<Finding>& findings, const std::string& check) {
    for (const Finding& f : findings)
      if (f.check == check) return f;
    return {check, State::kOk, "not examined", "", ""};
  }
  static void expect_says(const Finding& f, State state, const std::string& text) {
    EXPECT_EQ(int(f.state), int(state)) << f.check << ": " << f.finding;
    EXPECT_NE(f.finding.find(text), std::string::npos) << f.finding;
    EXPECT_EQ(f.consequence.empty(), state == State::kOk) << f.check;
  }
  std::string folder_;
  Layout layout_;
  DoctorOptions options_;
};

TEST_F(Doctor, TheWorstFindingDecidesTheStatus) {
  std::vector<Finding> findings = {{"a", State::kOk}, {"b", State::kNote}};
  EXPECT_EQ(exit_status(findings), 0);
  findings.push_back({"c", State::kWarning});
  EXPECT_EQ(exit_status(findings), 1);
  findings.insert(findings.begin(), {"d", State::kFailure});
  EXPECT_EQ(exit_status(findings), 3);
}

TEST_F(Doctor, AnInstallationThatIsWholeIsOk) {
  expect_says(machine("library"), State::kOk, "libtessera.so");
  expect_says(machine("software-gpu"), State::kOk, "softgpu");
  layout_.preload = folder_ + "/libtessera.so";
  layout_.softgpu = folder_;
  expect_says(machine("library"), State::kFailure, "is missing");
  expect_says(machine("software-gpu"), State::kFailure, "is missing");
  write("libtessera.so", "");
  expect_says(machine("library"), State::kFailure, "not a whole library");
  fs::create_directories(folder_ + "/libcuda.so.1");
  expect_says(machine("software-gpu"), State::kFailure, "it is a folder");
  layout_.preload = folder_ + "/a folder/libtessera.so";
  expect_says(machine("library"), State::kFailure, "at a space");
}

TEST_F(Doctor, ADaemonThatDoesNotAnswerIsAWarning) {
  expect_says(machine("daemon"), State::kWarning, "nobody.sock");
}

TEST_F(Doctor, SaysWhereWorkWaitsAndWhatTheOtherPlaceWouldGive) {
  const auto with = [](const char* clients) { return nlohmann::json::parse(clients); };
  EXPECT_EQ(examine_gate(with(R"({"clients": [{"gate": ""}, {"gate": "device"}]})")).state, State::kOk);
  expect_says(examine_gate(with(R"({"clients": [{"gate": "device"}, {"gate": "thread: nobody asks"}]})")),
              State::kNote, "1 best-effort clients wait on the device, 1 in their threads");
  EXPECT_EQ(examine_gate(with(R"({"clients": [{"gate": "thread: nobody asks"}]})")).consequence, kGatePrices);
  EXPECT_EQ(examine_gate(with(R"({"clients": [{}, 3, {"gate": 4}]})")).state, State::kOk)
      << "of another release";
}

TEST_F(Doctor, AContainerWithoutTheSocketIsAWarningThatSaysHowToStartIt) {
  expect_says(machine("container"), State::kOk, "no container");
  write(".dockerenv", "");
  expect_says(machine("container"), State::kWarning, "docker");
  EXPECT_NE(machine("container").remedy.find("tessera cdi generate"), std::string::npos);
}

TEST_F(Doctor, ASlowClockIsAWarning) {
  const std::string file = "sys/devices/system/clocksource/clocksource0/current_clocksource";
  write(file, "tsc\n");
  expect_says(machine("clock"), State::kOk, "tsc");
  write(file, "arch_sys_counter\n");  // of aarch64
  expect_says(machine("clock"), State::kOk, "arch_sys_counter");
  write(file, "hpet\n");
  expect_says(machine("clock"), State::kWarning, "hpet");
}

TEST_F(Doctor, LessThanOneCpuIsAWarning) {
  write("proc/self/cgroup", "1:name=systemd:/other\n0::/jobs/one\n");
  write("sys/fs/cgroup/jobs/one/cpu.max", "max 100000\n");
  expect_says(machine("cgroup"), State::kOk, "/jobs/one");
  write("sys/fs/cgroup/jobs/one/cpu.max", "50000 100000\n");
  expect_says(machine("cgroup"), State::kWarning, "50000 100000");
}

TEST_F(Doctor, ADriverThatIsNotThereOrCannotBeOpenedIsAFailure) {
  options_.gpu = "auto";
  setenv("TESSERA_DRIVER", (folder_ + "/none.so").c_str(), 1);
  expect_says(machine("driver"), State::kFailure, "libcuda.so.1");
  write("libcuda.so.1", "no library");
  setenv("TESSERA_DRIVER", (folder_ + "/libcuda.so.1").c_str(), 1);
  expect_says(machine("driver"), State::kOk, "libcuda.so.1");
  expect_says(machine("exports"), State::kFailure, "cannot be opened");
  setenv("TESSERA_DRIVER", (layout_.softgpu + "/libcuda.so.1").c_str(), 1);
  expect_says(machine("exports"), State::kOk, "is known");
  expect_says(machine("gpu"), State::kOk, "shows a GPU");
  expect_says(machine("memory"), State::kOk, "no GPU shares");
  unsetenv("TESSERA_DRIVER");
}

TEST_F(Doctor, AGpuThatSharesTheHostsMemoryIsNoted) {
  options_.gpu = "auto";
  setenv("TESSERA_DRIVER", (layout_.softgpu + "/libcuda.so.1").c_str(), 1);
  setenv("TESSERA_SOFTGPU_LOCAL", TESSERA_GPUS "/gb10.toml", 1);
  expect_says(machine("memory"), State::kNote, "share the host's memory: 0");
  unsetenv("TESSERA_SOFTGPU_LOCAL");
  unsetenv("TESSERA_DRIVER");
}

// Grace Hopper: it has memory of its own, which is a NUMA node of the host.
TEST_F(Doctor, AGpuThatMayHoldPagesOfTheHostIsNoted) {
  options_.gpu = "auto";
  setenv("TESSERA_DRIVER", (layout_.softgpu + "/libcuda.so.1").c_str(), 1);
  setenv("TESSERA_SOFTGPU_LOCAL", TESSERA_GPUS "/gh200.toml", 1);
  expect_says(machine("memory"), State::kNote, "may hold pages of the host: 0");
  unsetenv("TESSERA_SOFTGPU_LOCAL");
  unsetenv("TESSERA_DRIVER");
}

TEST_F(Doctor, CountersMayBeForAdministratorsOnly) {
  options_.gpu = "auto";
  write("proc/driver/nvidia/params", "ResmanDebugLevel: 1\nRmProfilingAdminOnly: 1\n");
  expect_says(machine("counters"), geteuid() == 0 ? State::kOk : State::kNote, "counters");
}

TEST_F(Doctor, AProgramThatTheLoaderStartsGetsTheLibrary) {
  expect_says(program(TESSERA_TRAINER, "program"), State::kOk, "batch_trainer");
  expect_says(program(TESSERA_TRAINER, "loader"), State::kOk, "LD_PRELOAD");
  expect_says(program(TESSERA_TRAINER, "libraries"), State::kOk, "libcuda.so.1");
  expect_says(program(TESSERA_TRAINER, "driver-name"), State::kOk, "libcuda.so.1");
  expect_says(program(TESSERA_TRAINER, "kernels"), State::kOk, "can be cut, 0 not");
}

TEST_F(Doctor, AProgramThatCannotBeStartedIsAFailure) {
  expect_says(program("no-such-command-at-all", "program"), State::kFailure, "command not found");
  write("not-executable", "x", 0644);
  expect_says(program(folder_ + "/not-executable", "program"), State::kFailure, "command not found");
}

TEST_F(Doctor, PrivilegesKeepTheLibraryOut) {
  fs::copy_file(TESSERA_TRAINER, folder_ + "/privileged");
  ASSERT_EQ(chmod((folder_ + "/privileged").c_str(), 04755), 0);
  expect_says(program(folder_ + "/privileged", "program"), State::kFailure, "setuid");
}

TEST_F(Doctor, AStaticProgramIsAFailure) {
  expect_says(program(TESSERA_STATIC, "loader"), State::kFailure, "linked statically");
}

TEST_F(Doctor, AScriptIsItsInterpreter) {
  write("script", "#!/usr/bin/env -S sh -e\n", 0755);
  expect_says(program(folder_ + "/script", "program"), State::kOk, "sh runs " + folder_ + "/script");
  expect_says(program(folder_ + "/script", "kernels"), State::kNote, "no GPU code");
  write("second", "#!" + folder_ + "/script\n", 0755);
  expect_says(program(folder_ + "/second", "loader"), State::kOk, "dynamic loader");
  write("circle", "#!" + folder_ + "/circle\n", 0755);
  expect_says(program(folder_ + "/circle", "loader"), State::kWarning, "no ELF file");
}

TEST_F(Doctor, ALibraryThatIsMissingOrAnotherDriverIsSaid) {
  layout_.preload = folder_ + "/libtessera.so";
  expect_says(program(TESSERA_TRAINER, "libraries"), State::kFailure, "did not map");
}

TEST_F(Doctor, AProgramWithARpathToAnotherDriverGetsOurs) {
  expect_says(program(TESSERA_RPATH, "libraries"), State::kOk, "libcuda.so.1");
}

TEST_F(Doctor, AnotherPreloadedLibraryIsNoted) {
  expect_says(machine("preload"), State::kOk, "no other library");
  setenv("LD_PRELOAD", "/opt/malloc.so", 1);
  expect_says(machine("preload"), State::kNote, "LD_PRELOAD=/opt/malloc.so");
  setenv("LD_PRELOAD", ("/opt/limiter.so " + find_layout().preload + ":/opt/malloc.so").c_str(), 1);
  expect_says(machine("preload"), State::kNote, "already, and /opt/limiter.so /opt/malloc.so");
  unsetenv("LD_PRELOAD");
}

TEST_F(Doctor, ADriverOpenedByItsPathIsAWarning) {
  ASSERT_EQ(kByPath[0], '/');
  expect_says(program("/proc/self/exe", "driver-name"), State::kWarning, "/opt/driver/libcuda.so.1");
}

TEST_F(Doctor, WhatIsLookedUpByNameIsServedIfThatIsKnownOrAskedFor) {
  expect_says(program(TESSERA_TRAINER, "lookups"), State::kNote, "not known");
  fs::copy_file(TESSERA_TRAINER, folder_ + "/julia");
  expect_says(program(folder_ + "/julia", "lookups"), State::kOk, "julia");
  layout_.audit = folder_ + "/none";
  expect_says(program(folder_ + "/julia", "lookups"), State::kWarning, "missing");
}

TEST_F(Doctor, DamagedProgramsAreReadWithoutHarm) {
  std::ifstream in(TESSERA_STATIC, std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(in)), {});
  ASSERT_GT(whole.size(), 4096u);
  const size_t table = *reinterpret_cast<const uint64_t*>(whole.data() + 40);  // e_shoff
  uint64_t random = 1;
  for (int i = 0; i < 400; i++) {
    std::string damaged = whole;
    for (int k = 0; k < 4; k++) {
      random = random * 6364136223846793005u + 1442695040888963407u;
      const size_t at = k % 2 ? table + (random >> 33) % (whole.size() - table) : (random >> 33) % 512;
      damaged[at] = char(random >> 56);
    }
    if (i % 4 == 0) damaged.resize((random >> 33) % whole.size());
    write("damaged", damaged);
    (void)read_elf(folder_ + "/damaged");
  }
  EXPECT_FALSE(read_elf(folder_ + "/none").ok());
}

TEST_F(Doctor, AClientOfWhichNothingCanBeCutIsANote) {
  EXPECT_TRUE(examine_clients(nullptr).empty());
  const auto state = nlohmann::json::parse(R"({"clients": [
    {"pid": 7, "name": "serve.py", "outcomes": []},
    {"pid": 8, "name": "train.py", "outcomes": [{"name": "no_ptx", "launches": 280000, "gpu_ns": 9}]},
    {"pid": 9, "name": "own.py", "outcomes": [{"name": "sliced", "launches": 5, "gpu_ns": 9}]}]})");
  const std::vector<Finding> findings = examine_clients(state);
  ASSERT_EQ(findings.size(), 2u);
  expect_says(findings[0], State::kNote, "8 train.py: cut: 0% of 280k launches");
  EXPECT_NE(findings[0].consequence.find("machine code without PTX"), std::string::npos);
  EXPECT_NE(findings[0].remedy.find("--keep-ptx"), std::string::npos);
  expect_says(findings[1], State::kOk, "9 own.py: cut: 100% of 5 launches");
}

// MPS v3 accepts all of these and says nothing (NVIDIA's guide, "silent failures").
TEST_F(Doctor, TheTrapsOfMpsFilesAreSaid) {
  const auto says = [&](const std::string& text) {
    std::string out;
    for (const Finding& f : examine_mps_file("mps.toml", text, {{"GPU-here"}, uint64_t(16) << 30, folder_}))
      out += f.finding + "; ";
    return out;
  };
  EXPECT_EQ(says(R"([servers.a]
    allowed_devices = "GPU-here"
    active_thread_percentage = "50"
    pinned_memory_limit = "8G"
    [servers.a.namespaces.b]
    active_thread_percentage = "50"
    pinned_memory_limit = "4G")"),
            "mps.toml has none of the known traps; ");
  EXPECT_EQ(says("[servers.a]\nallowed_devices = \"GPU-here,GPU-gone\""),
            "server a has a GPU in allowed_devices that is not there: GPU-gone; ");
  EXPECT_EQ(says("[servers.a]\nactive_thread_percentage = \"50\"\n[servers.a.namespaces.b]\nclient_priority "
                 "= \"1\""),
            "namespace a/b has no limits; ");
  EXPECT_EQ(says("[servers.a]\nactive_thread_percentage = "
                 "60\n[servers.a.namespaces.b]\nactive_thread_percentage = 50"),
            "server a gives 110% of the SMs in sum; ");
  EXPECT_EQ(says("[servers.a]\npinned_memory_limit = \"2G\"\n[servers.a.namespaces.b]\npinned_memory_limit = "
                 "\"15G\""),
            "namespace a/b has a larger pinned_memory_limit than its server; server a gives 17 GiB of 16 GiB "
            "in sum; ");
  EXPECT_EQ(says("[servers.a.namespaces.b]\nactive_thread_percentage = 50\ncgroup = \"/sys/fs/cgroup/none\""),
            "namespace a/b is for a cgroup that is not there: /sys/fs/cgroup/none; ");
  EXPECT_NE(says("[servers").find("cannot be read"), std::string::npos);
  EXPECT_NE(says("\xff").find("cannot be read"), std::string::npos);
  EXPECT_EQ(says("servers = 3"), "mps.toml has none of the known traps; ");
}

TEST_F(Doctor, TheFileOfMpsIsThatOfItsControlDaemon) {
  const MachineFolders folders = {folder_ + "/proc", folder_ + "/sys", folder_ + "/dev", folder_};
  write("pipe/nvidia-cuda-mps-control.pid", "77\n");
  EXPECT_EQ(configuration_of_mps(folder_ + "/pipe", folders), "");
  write("proc/77/cmdline", std::string("nvidia-cuda-mps-control\0-d\0-p\0003\0-a\0/etc/mps.toml\0", 48));
  EXPECT_EQ(configuration_of_mps(folder_ + "/pipe", folders), "/etc/mps.toml");
  EXPECT_EQ(configuration_of_mps(folder_ + "/pipe/server/space", folders), "/etc/mps.toml");
  EXPECT_EQ(configuration_of_mps(folder_, folders), "");
}

TEST_F(Doctor, LimitsOfGpuMemoryInCgroupsAreSaid) {
  write("proc/self/cgroup", "0::/jobs/one\n");
  write("sys/fs/cgroup/jobs/dmem.max", "nvidia/01:00.0/vidmem 1000\n");
  write("sys/fs/cgroup/jobs/two/dmem.min", "nvidia/01:00.0/vidmem 500\n");
  write("sys/fs/cgroup/jobs/two/cgroup.events", "populated 0\nfrozen 0\n");
  expect_says(machine("gpu-memory-cgroup"), State::kOk, "not examined");  // the kernel has no such controller
  write("sys/fs/cgroup/cgroup.controllers", "cpu dmem memory\n");
  expect_says(machine("gpu-memory-cgroup"), State::kWarning,
              "dmem.max of /jobs limits nvidia/01:00.0/vidmem to 1000");
  write("sys/fs/cgroup/jobs/one/dmem.max", "nvidia/01:00.0/vidmem 900\n");
  expect_says(machine("gpu-memory-cgroup"), State::kNote, "/jobs/two reserves 500 bytes");
  write("sys/fs/cgroup/jobs/two/cgroup.events", "populated 1\nfrozen 0\n");
  expect_says(machine("gpu-memory-cgroup"), State::kOk, "not examined");
}

TEST_F(Doctor, JsonHasEveryFindingAndTheVerdict) {
  FILE* pipe = popen((std::string(TESSERA_BIN) + " doctor --gpu soft --json --socket " + options_.socket +
                      " -- " + TESSERA_TRAINER + " --seconds 3")
                         .c_str(),
                     "r");
  std::string text;
  char chunk[512];
  while (const size_t got = fread(chunk, 1, sizeof chunk, pipe)) text.append(chunk, got);
  EXPECT_EQ(WEXITSTATUS(pclose(pipe)), 1);  // no daemon
  const auto out = nlohmann::json::parse(text);
  EXPECT_EQ(out["verdict"], "warning");
  for (const char* check : {"library", "software-gpu", "daemon", "program", "loader", "libraries",
                            "driver-name", "lookups", "kernels"})
    EXPECT_TRUE(std::any_of(out["findings"].begin(), out["findings"].end(), [&](const auto& f) {
      return f["check"] == check && f.contains("remedy");
    })) << check;
}

}  // namespace
}  // namespace tessera::cli
