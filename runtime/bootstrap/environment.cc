#include "runtime/bootstrap/environment.h"

#include <fmt/format.h>

#include <array>
#include <charconv>

#include "nzcl/error.h"

namespace nzcl::bootstrap {
namespace {

/// The environment variables that one launcher sets.
struct Variables {
  const char* launcher;
  const char *rank, *size, *local_size;
  bool counts_everything;  // see LaunchEnvironment
};

// The innermost launcher comes first, because it is the one that started the ranks: torchrun may run inside
// of mpirun or srun, and mpirun inside of an allocation of Slurm. Sources: torchrun --help; ompi(7)
// "MCA/runtime environment variables"; Hydra's and Slurm's srun(1) OUTPUT ENVIRONMENT VARIABLES.
constexpr std::array kLaunchers = {
    Variables{"torchrun-style variables", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", false},
    Variables{"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", true},
    Variables{"MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS", true},
    Variables{"Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE", true},
};

int number(const Lookup& lookup, const char* name, int otherwise) {
  const auto text = lookup(name);
  if (!text || text->empty()) return otherwise;
  int value = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc() || end != text->data() + text->size() || value < 0) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("environment variable {}: \"{}\" is not a number", name, *text));
  }
  return value;
}

/// The number of tasks if the job has a single node, else -1. Slurm writes "4" for one node, and "4(x2)" or
/// "4,3" for several.
int tasks_of_single_node(const Lookup& lookup, const char* name) {
  const std::string text = lookup(name).value_or("");
  return text.find_first_not_of("0123456789") == std::string::npos ? number(lookup, name, -1) : -1;
}

}  // namespace

LaunchEnvironment read_launch_environment(const Lookup& lookup) {
  LaunchEnvironment e;
  for (const Variables& v : kLaunchers) {
    const int rank = number(lookup, v.rank, -1);
    const int size = number(lookup, v.size, -1);
    if (size < 0 || (rank < 0 && v.counts_everything)) continue;
    e.launcher = v.launcher;
    e.rank = rank;
    e.size = size;
    e.local_size = tasks_of_single_node(lookup, v.local_size);
    e.counts_everything = v.counts_everything;
    break;
  }
  e.torchrun = lookup("TORCHELASTIC_RUN_ID").has_value();
  e.master_addr = lookup("MASTER_ADDR").value_or("");
  e.master_port = number(lookup, "MASTER_PORT", 0);
  e.pmix = lookup("PMIX_RANK") && lookup("PMIX_NAMESPACE");
  if (const auto job = lookup("SLURM_JOB_ID"))
    e.job = "slurm-" + *job + "." + lookup("SLURM_STEP_ID").value_or("0");
  return e;
}

}  // namespace nzcl::bootstrap
