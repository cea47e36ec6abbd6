// `tessera profile` on programs that are not one process with one GPU: Python, a child, several GPUs, and
// beside another profiler.
#include <stdlib.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "profiles/profile_file.h"

namespace tessera {
namespace {

using testing::HasSubstr;

class ProfiledProgram : public testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(mkdtemp(folder_), nullptr); }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string path(const std::string& name) const { return std::string(folder_) + "/" + name; }
  int profile(const std::string& variables, const std::string& arguments) const {
    const int status =
        system(("cd '" + std::string(folder_) + "' && " + variables +
                " '" TESSERA_PREFIX "/bin/tessera' profile -o p.json " + arguments + " > out.txt 2> err.txt")
                   .c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  std::string said() const {
    std::stringstream text;
    text << std::ifstream(path("err.txt")).rdbuf();
    return text.str();
  }
  char folder_[40] = "/tmp/tessera-programs-XXXXXX";
};

TEST_F(ProfiledProgram, OfPythonWithAChildOnTwoGpus) {
  ASSERT_EQ(profile("TESSERA_SOFTGPU_DEVICES=test4,l4", "--gpu soft -- python3 '" TESSERA_TWO_GPUS "'"), 0)
      << said();
  auto profile = profiles::load_profile(path("p.json"));
  ASSERT_TRUE(profile.ok()) << profile.error().text;
  std::map<std::string, uint64_t> launches;
  for (const auto& [key, record] : profile->kernels) {
    launches[key.gpu + ": " + key.kernel] = record.duration.samples;
    EXPECT_GT(record.duration.min_ns, 0u) << key.kernel;
  }
  EXPECT_EQ(launches, (std::map<std::string, uint64_t>{{"NVIDIA L4: often", 5},
                                                       {"NVIDIA L4: once", 1},
                                                       {"Tessera Test GPU 4: of_the_child", 2},
                                                       {"Tessera Test GPU 4: often", 5},
                                                       {"Tessera Test GPU 4: once", 1}}));
  EXPECT_THAT(said(), HasSubstr("NVIDIA L4, Tessera Test GPU 4, 2 process(es), 5 kernels"));
  // Each is classed by its own GPU's description, as soon as there are launches enough.
  for (const auto& [key, record] : profile->kernels)
    EXPECT_EQ(record.bound, key.kernel == "often" ? profiles::Class::kLatency : profiles::Class::kUnknown)
        << key.kernel << ": " << record.bound_reason;
}

TEST_F(ProfiledProgram, IsShownToProgressOnATerminal) {
  const std::string script =
      "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))";
  const int status =
      system(("cd '" + std::string(folder_) + "' && python3 -c '" + script +
              "' '" TESSERA_PREFIX "/bin/tessera' profile --gpu soft -- sleep 1.2 > err.txt < /dev/null")
                 .c_str());
  EXPECT_EQ(WEXITSTATUS(status), 3);
  EXPECT_THAT(said(), HasSubstr("tessera profile: 1 s, 0.0 MB of records"));
  EXPECT_THAT(said(), HasSubstr("\r\033[Ktessera profile: the program did not use the GPU"));  // left clean
}

TEST_F(ProfiledProgram, IsLeftToAnotherProfilerThatIsAttached) {
  EXPECT_EQ(profile("CUDA_INJECTION64_PATH=/opt/other.so", "-- touch ran"), 2);
  EXPECT_THAT(said(), HasSubstr("another profiler is attached (CUDA_INJECTION64_PATH=/opt/other.so)"));
  EXPECT_FALSE(std::filesystem::exists(path("ran")));
}

}  // namespace
}  // namespace tessera
