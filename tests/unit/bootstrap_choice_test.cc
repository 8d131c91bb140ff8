// Which kind of meeting is chosen from the variables that a launcher sets.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "nzcl/error.h"
#include "runtime/bootstrap/environment.h"
#include "runtime/bootstrap/factory.h"

namespace nzcl::bootstrap {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Kind = Choice::Kind;
using Variables = std::map<std::string, std::string>;

LaunchEnvironment read(const Variables& variables) {
  return read_launch_environment([&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
}
Choice chosen(const Variables& variables, const Options& options = {}, Role role = Role::worker,
              int number = -1) {
  return choose(options, read(variables), role, number);
}
std::string refusal(const Variables& variables, const Options& options = {}, Role role = Role::worker,
                    int number = -1) {
  try {
    chosen(variables, options, role, number);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
    return e.what();
  }
  return "no error";
}

const Variables kTorch{{"RANK", "2"},
                       {"WORLD_SIZE", "4"},
                       {"LOCAL_RANK", "0"},
                       {"MASTER_ADDR", "10.0.0.1"},
                       {"MASTER_PORT", "29500"}};
const Variables kMpich{
    {"PMI_RANK", "1"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "4"}};
const Variables kOpenMpi{{"OMPI_COMM_WORLD_RANK", "3"},
                         {"OMPI_COMM_WORLD_SIZE", "4"},
                         {"OMPI_COMM_WORLD_LOCAL_RANK", "3"},
                         {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}};
const Variables kSlurm{{"SLURM_PROCID", "5"},  {"SLURM_STEP_NUM_TASKS", "8"},
                       {"SLURM_LOCALID", "1"}, {"SLURM_STEP_TASKS_PER_NODE", "4(x2)"},
                       {"SLURM_JOB_ID", "77"}, {"SLURM_STEP_ID", "1"}};

Variables with(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}

TEST(LaunchEnvironment, ReadsEachLauncher) {
  EXPECT_EQ(read(kTorch).rank, 2);
  EXPECT_EQ(read(kTorch).size, 4);
  EXPECT_FALSE(read(kTorch).counts_everything);
  EXPECT_EQ(read(kMpich).launcher, "MPICH");
  EXPECT_EQ(read(kMpich).local_size, 4);
  EXPECT_EQ(read(kOpenMpi).launcher, "Open MPI");
  EXPECT_EQ(read(kOpenMpi).rank, 3);
  EXPECT_EQ(read(kSlurm).launcher, "Slurm");
  EXPECT_EQ(read(kSlurm).rank, 5);
  EXPECT_EQ(read(kSlurm).local_size, -1) << "two nodes";
  EXPECT_EQ(read(kSlurm).job, "slurm-77.1");
  EXPECT_EQ(read({}).rank, -1);
}

TEST(LaunchEnvironment, TheInnermostLauncherCounts) { EXPECT_EQ(read(with(kSlurm, kTorch)).rank, 2); }

TEST(LaunchEnvironment, AVariableThatIsNoNumberIsNamedWhereItIsUsed) {
  const Variables wrong{{"RANK", "two"}, {"WORLD_SIZE", "4"}};
  EXPECT_THAT(refusal(wrong), AllOf(HasSubstr("RANK"), HasSubstr("two")));
  EXPECT_EQ(chosen(with(wrong, {{"PMIX_RANK", "3"}, {"PMIX_NAMESPACE", "job"}})).kind, Kind::pmix);
  Options o;
  o.rank = 1;
  o.world_size = 4;
  o.rendezvous_file = "/shared/f";
  EXPECT_EQ(chosen(wrong, o).position, 1);
}

TEST(LaunchEnvironment, APortThatKubernetesHasSetIsNamedWhereItIsUsed) {
  const Variables service{{"MASTER_PORT", "tcp://10.0.0.1:5557"}};
  EXPECT_THAT(
      refusal(with(kTorch, service)),
      AllOf(HasSubstr("MASTER_PORT"), HasSubstr("tcp://10.0.0.1:5557"), HasSubstr("NZCL_MASTER_PORT")));
  EXPECT_EQ(chosen(with(kMpich, service)).kind, Kind::file);
  Options o;
  o.master_port = 31000;
  EXPECT_EQ(chosen(with(kTorch, service), o).port, 31000);
}

TEST(Contradiction, OfTwoLaunchersShowsBoth) {
  const Variables left_over{{"RANK", "0"}, {"WORLD_SIZE", "1"}};
  EXPECT_THAT(refusal(with(kMpich, left_over)),
              AllOf(HasSubstr("RANK=0 WORLD_SIZE=1"), HasSubstr("MPICH (PMI_RANK=1 PMI_SIZE=4)")));
  EXPECT_THAT(refusal(with(kSlurm, left_over)), HasSubstr("Slurm (SLURM_PROCID=5 SLURM_STEP_NUM_TASKS=8)"));
  EXPECT_THAT(refusal(with(kOpenMpi, left_over)), HasSubstr("Open MPI"));
  EXPECT_THAT(refusal(with(kMpich, {{"WORLD_SIZE", "1"}})), HasSubstr("WORLD_SIZE=1"));
  EXPECT_THAT(refusal(with(kMpich, {{"RANK", "0"}, {"WORLD_SIZE", "4"}})), HasSubstr("RANK=0"))
      << "rank 1 of 4";
  EXPECT_THAT(refusal(with(kMpich, {{"RANK", "3"}, {"WORLD_SIZE", "8"}})), HasSubstr("RANK=3"));
  EXPECT_THAT(refusal(with(kMpich, kOpenMpi)), HasSubstr("Open MPI"));
}

TEST(Contradiction, IsNoneWhereTheNumbersAgreeOrOneLauncherRunsInsideOfTheOther) {
  const Variables place{{"MASTER_ADDR", "n1"}, {"MASTER_PORT", "5000"}};
  const auto size = [&](const Variables& variables, const Options& o = {}) {
    return chosen(with(variables, place), o).size;
  };
  EXPECT_EQ(size(with(kMpich, {{"RANK", "1"}, {"WORLD_SIZE", "4"}})), 4);
  EXPECT_EQ(size(with(kSlurm, kMpich)), 4) << "mpirun in an allocation";
  EXPECT_EQ(size(with(kSlurm, with(kTorch, {{"TORCHELASTIC_RUN_ID", "x"}}))), 4) << "torchrun says so";
  EXPECT_EQ(size(with(kMpich, {{"RANK", "9"}, {"WORLD_SIZE", "32"}, {"LOCAL_RANK", "1"}})), 32);
  EXPECT_EQ(size({{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}, {"RANK", "2"}, {"WORLD_SIZE", "3"}}),
            3)
      << "a shell that srun has started";
  Options o;
  o.aggregators = 1;
  EXPECT_EQ(size(with(kMpich, {{"RANK", "1"}, {"WORLD_SIZE", "3"}}), o), 4)
      << "WORLD_SIZE counts the workers";
  o = {};
  o.rank = 1;
  o.world_size = 2;
  EXPECT_EQ(size(with(kMpich, {{"RANK", "0"}, {"WORLD_SIZE", "1"}}), o), 2)
      << "what is set for nzcl counts more";
}

TEST(Choice, TorchrunStyleVariablesMeetAtTheMaster) {
  const Choice c = chosen(kTorch);
  EXPECT_EQ(c.kind, Kind::socket);
  EXPECT_EQ(c.position, 2);
  EXPECT_EQ(c.size, 4);
  EXPECT_EQ(c.host, "10.0.0.1");
  EXPECT_EQ(c.port, 29500);
}

TEST(Choice, TorchrunsOwnStoreKeepsItsPort) {
  EXPECT_EQ(chosen(with(kTorch, {{"TORCHELASTIC_RUN_ID", "x"}})).port, 29501);
  Options o;
  o.master_port = 31000;
  EXPECT_EQ(chosen(with(kTorch, {{"TORCHELASTIC_RUN_ID", "x"}}), o).port, 31000);
}

TEST(Choice, PmixIsTrustedBeforeSockets) {
  const Variables pmix = with(kOpenMpi, {{"PMIX_RANK", "3"}, {"PMIX_NAMESPACE", "job"}});
  EXPECT_EQ(chosen(pmix).kind, Kind::pmix);
  EXPECT_EQ(chosen(with(pmix, {{"MASTER_ADDR", "h"}, {"MASTER_PORT", "1"}})).kind, Kind::pmix);
  // A rank that torchrun started within mpirun inherits PMIx's variables, but they describe torchrun's own
  // process.
  EXPECT_EQ(chosen(with(with(pmix, kTorch), {{"TORCHELASTIC_RUN_ID", "x"}})).kind, Kind::socket);
  Options o;
  o.rendezvous_file = "/shared/f";
  EXPECT_EQ(chosen(pmix, o).kind, Kind::file) << "what is set for nzcl itself counts more";
}

TEST(Choice, LaunchersOnOneHostMeetByAFileOfTheJob) {
  for (const auto& variables : {kMpich, kOpenMpi}) {
    const Choice c = chosen(variables);
    EXPECT_EQ(c.kind, Kind::file);
    EXPECT_EQ(c.path, "");
    EXPECT_EQ(c.size, 4);
  }
  EXPECT_THAT(refusal(kSlurm), AllOf(HasSubstr("process 5 of 8"), HasSubstr("MASTER_ADDR")));
  const Choice c = chosen(with(kSlurm, {{"MASTER_ADDR", "n1"}, {"MASTER_PORT", "5000"}}));
  EXPECT_EQ(c.kind, Kind::socket);
  EXPECT_EQ(c.position, 5);
}

TEST(Choice, NothingToldIsAnErrorThatSaysWhatToDo) {
  EXPECT_THAT(refusal({}), AllOf(HasSubstr("mpirun"), HasSubstr("NZCL_WORLD_SIZE=1")));
  EXPECT_THAT(refusal({{"RANK", "0"}, {"WORLD_SIZE", "2"}}), HasSubstr("MASTER_ADDR"));
  Options o;
  o.bootstrap = Bootstrap::pmix;
  EXPECT_THAT(refusal(kMpich, o), HasSubstr("PMIX_RANK"));
  o.bootstrap = Bootstrap::file;
  EXPECT_THAT(refusal(kMpich, o), HasSubstr("NZCL_RENDEZVOUS_FILE"));
  EXPECT_THAT(refusal({{"RANK", "4"}, {"WORLD_SIZE", "4"}}), HasSubstr("rank 4 of 4"));
}

TEST(Choice, AWorldOfOneIsAskedFor) {
  Options o;
  o.world_size = 1;
  EXPECT_EQ(chosen({}, o).kind, Kind::self);
  EXPECT_EQ(chosen({{"RANK", "0"}, {"WORLD_SIZE", "1"}}).kind, Kind::self);
}

TEST(Choice, DedicatedAggregatorsComeAfterTheWorkers) {
  Options o;
  o.aggregators = 2;
  EXPECT_EQ(chosen(kTorch, o).size, 6);
  const Choice c = chosen(kTorch, o, Role::aggregator, 1);
  EXPECT_EQ(c.position, 5);
  EXPECT_EQ(c.size, 6);
  EXPECT_THAT(refusal(kTorch, o, Role::aggregator, 2), HasSubstr("aggregator 2 of 2"));
  EXPECT_THAT(refusal(kTorch, o, Role::aggregator, -1), HasSubstr("number them"));
  // "mpirun -n 2 workers : -n 2 aggregators" numbers workers and aggregators in one sequence.
  EXPECT_EQ(chosen(kMpich, o, Role::aggregator, -1).position, 1);
  EXPECT_EQ(chosen(kMpich, o, Role::aggregator, -1).size, 4);
}

}  // namespace
}  // namespace nzcl::bootstrap
