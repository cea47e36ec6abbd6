// The gang of a process, by its environment.
#include "interpose/state/gang.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

namespace tessera::state {
namespace {

using Variables = std::map<std::string, std::string>;
Variables g_variables;

std::string gang(const Variables& variables) {
  g_variables = variables;
  return gang_of([](const char* variable) -> const char* {
           const auto found = g_variables.find(variable);
           return found == g_variables.end() ? nullptr : found->second.c_str();
         })
      .text;
}

Variables with(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}

const Variables kTorchrun{{"WORLD_SIZE", "8"},
                          {"RANK", "3"},
                          {"TORCHELASTIC_RUN_ID", "none"},
                          {"MASTER_ADDR", "127.0.0.1"},
                          {"MASTER_PORT", "29500"},
                          {"TORCHELASTIC_RESTART_COUNT", "0"}};
const Variables kSlurm{{"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_JOB_ID", "77"}, {"SLURM_STEP_ID", "0"}};

TEST(GangOf, NobodyWithoutALauncher) {
  EXPECT_EQ(gang({}), "");
  EXPECT_EQ(gang({{"WORLD_SIZE", "8"}}), "");
  EXPECT_EQ(gang({{"SLURM_JOB_ID", "77"}, {"SLURM_STEP_NUM_TASKS", "4"}}), "");  // a batch script, no step
  EXPECT_EQ(gang({{"OMPI_COMM_WORLD_SIZE", "4"}}), "");                          // no job is identified
}

TEST(GangOf, EachLauncherIsKnown) {
  EXPECT_EQ(gang(kTorchrun), "torchrun:none:127.0.0.1:29500:0");
  EXPECT_EQ(gang({{"WORLD_SIZE", "2"}, {"RANK", "0"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}}),
            "torch:a:1");
  EXPECT_EQ(gang(kSlurm), "slurm:77:0");
  EXPECT_EQ(gang({{"OMPI_COMM_WORLD_SIZE", "2"}, {"PMIX_NAMESPACE", "job"}}), "openmpi:job");
  EXPECT_EQ(gang({{"OMPI_COMM_WORLD_SIZE", "2"}, {"OMPI_MCA_ess_base_jobid", "12"}}), "openmpi:12");
  EXPECT_EQ(gang({{"PMI_SIZE", "2"}, {"PMI_JOBID", "5.1"}}), "pmi:5.1");
}

TEST(GangOf, RanksOfOneJobHaveOneNameAndItsNextStartAnother) {
  EXPECT_EQ(gang(with(kTorchrun, {{"RANK", "5"}})), gang(kTorchrun));
  EXPECT_NE(gang(with(kTorchrun, {{"TORCHELASTIC_RESTART_COUNT", "1"}})), gang(kTorchrun));
  EXPECT_NE(gang(with(kTorchrun, {{"MASTER_PORT", "29501"}})), gang(kTorchrun));
}

TEST(GangOf, AJobOfOneProcessIsNone) {
  EXPECT_EQ(gang(with(kTorchrun, {{"WORLD_SIZE", "1"}})), "");
  EXPECT_EQ(gang(with(kSlurm, {{"SLURM_STEP_NUM_TASKS", "1"}})), "");
  EXPECT_EQ(gang(with(kSlurm, {{"SLURM_STEP_NUM_TASKS", "many"}})), "");
}

TEST(GangOf, TheInnerLauncherCounts) {
  EXPECT_EQ(gang(with(kTorchrun, kSlurm)), gang(kTorchrun));
  EXPECT_EQ(gang(with(kSlurm, {{"OMPI_COMM_WORLD_SIZE", "2"}, {"PMIX_NAMESPACE", "job"}})), "openmpi:job");
}

TEST(GangOf, TheUserHasTheLastWord) {
  EXPECT_EQ(gang(with(kTorchrun, {{"TESSERA_GANG", "mine"}})), "mine");
  EXPECT_EQ(gang(with(kTorchrun, {{"TESSERA_GANG", "none"}})), "");
  EXPECT_EQ(gang(with(kTorchrun, {{"TESSERA_GANG", ""}})), gang(kTorchrun));
}

TEST(GangOf, LongNamesStayApart) {
  const std::string host(200, 'h');
  const std::string one = gang(with(kTorchrun, {{"MASTER_ADDR", host}}));
  const std::string other = gang(with(kTorchrun, {{"MASTER_ADDR", host}, {"MASTER_PORT", "2"}}));
  EXPECT_EQ(one.size(), size_t(ipc::abi::kMaxNameBytes - 1));
  EXPECT_TRUE(one.starts_with("torchrun:none:hhh")) << one;
  EXPECT_NE(one, other);
}

}  // namespace
}  // namespace tessera::state
