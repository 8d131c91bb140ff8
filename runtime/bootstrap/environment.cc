#include "runtime/bootstrap/environment.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <initializer_list>
#include <string_view>
#include <utility>

namespace nzcl::bootstrap {
namespace {

/// The environment variables that one launcher sets.
struct Variables {
  const char* launcher;
  const char *rank, *size, *local_size;
  bool counts_everything;  // see Launch
};

constexpr std::string_view kSlurm = "Slurm";

// The innermost launcher comes first, because it is the one that started the ranks: torchrun may run inside
// of mpirun or srun, and mpirun inside of an allocation of Slurm. Sources: torchrun --help; ompi(7)
// "MCA/runtime environment variables"; Hydra's and Slurm's srun(1) OUTPUT ENVIRONMENT VARIABLES.
constexpr std::array kLaunchers = {
    Variables{"torchrun-style variables", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", false},
    Variables{"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", true},
    Variables{"MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS", true},
    Variables{kSlurm.data(), "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE", true},
};

/// Returns -1 if the variable is not set or, with a mistake, if it is not a number.
int number(const Lookup& lookup, const char* name, std::string& mistake) {
  const auto text = lookup(name);
  if (!text || text->empty()) return -1;
  int value = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error == std::errc() && end == text->data() + text->size() && value >= 0) return value;
  mistake = fmt::format("environment variable {}: \"{}\" is not a number", name, *text);
  return -1;
}

/// The number of tasks if the job has a single node, else -1. Slurm writes "4" for one node, and "4(x2)" or
/// "4,3" for several.
int tasks_of_single_node(const Lookup& lookup, const char* name, std::string& mistake) {
  const std::string text = lookup(name).value_or("");
  return text.find_first_not_of("0123456789") == std::string::npos ? number(lookup, name, mistake) : -1;
}

std::string values(const Lookup& lookup, std::initializer_list<const char*> names) {
  std::string list;
  for (const char* name : names) {
    if (const auto value = lookup(name))
      list += fmt::format("{}{}={}", list.empty() ? "" : " ", name, *value);
  }
  return list;
}

bool is_set(const Lookup& lookup, const char* name) { return !lookup(name).value_or("").empty(); }

Launch read(const Variables& v, const Lookup& lookup) {
  Launch launch{.launcher = v.launcher,
                .counts_everything = v.counts_everything,
                .text = values(lookup, {v.rank, v.size}),
                .mistake = {}};
  launch.rank = number(lookup, v.rank, launch.mistake);
  launch.size = number(lookup, v.size, launch.mistake);
  launch.local_size = tasks_of_single_node(lookup, v.local_size, launch.mistake);
  return launch;
}

/// Whether `inner` may have been started by a process of `outer`. What sets torch's variables starts at least
/// one rank on each process of the outer launcher. It says which of them each is, unless the outer launcher
/// has started a single shell, in which somebody types.
bool may_be_inside(const LaunchEnvironment& inner, const Launch& outer) {
  if (inner.counts_everything) return outer.launcher == kSlurm;
  return inner.torchrun || (inner.size > outer.size && (inner.local_rank || outer.size == 1));
}

bool agree(const Launch& a, const Launch& b, int aggregators) {
  if (a.size == b.size) return a.rank == b.rank || a.rank < 0 || b.rank < 0;
  return a.counts_everything != b.counts_everything && a.size + aggregators == b.size;
}

}  // namespace

LaunchEnvironment read_launch_environment(const Lookup& lookup) {
  LaunchEnvironment e;
  for (const Variables& v : kLaunchers) {
    if (!is_set(lookup, v.size) || (v.counts_everything && !is_set(lookup, v.rank))) continue;
    Launch launch = read(v, lookup);
    if (e.launcher.empty()) {
      static_cast<Launch&>(e) = std::move(launch);
    } else {
      e.outer.push_back(std::move(launch));
    }
  }
  e.local_rank = is_set(lookup, "LOCAL_RANK");
  e.torchrun = lookup("TORCHELASTIC_RUN_ID").has_value();
  e.master_addr = lookup("MASTER_ADDR").value_or("");
  e.master_port = lookup("MASTER_PORT").value_or("");
  e.pmix = lookup("PMIX_RANK") && lookup("PMIX_NAMESPACE");
  if (const auto job = lookup("SLURM_JOB_ID"))
    e.job = "slurm-" + *job + "." + lookup("SLURM_STEP_ID").value_or("0");
  return e;
}

std::string contradiction(const LaunchEnvironment& e, int aggregators) {
  for (const Launch& other : e.outer) {
    if (!other.mistake.empty() || may_be_inside(e, other) || agree(e, other, aggregators)) continue;
    return fmt::format("{} ({}) and {} ({})", e.launcher, e.text, other.launcher, other.text);
  }
  return "";
}

}  // namespace nzcl::bootstrap
