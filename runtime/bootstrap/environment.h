// What launchers tell a process through its environment. The function has no side effects, and reads
// variables only through the given lookup, so that tests can bring their own.
#pragma once

#include <string>

#include "runtime/options/resolve.h"

namespace nzcl::bootstrap {

/// -1 or "" stands for what no variable tells.
struct LaunchEnvironment {
  /// "torchrun-style variables", "Open MPI", "MPICH" or "Slurm"; "": no launcher has set variables for ranks.
  std::string launcher;
  int rank = -1, size = -1;  // a dedicated aggregator may be told a size without a rank
  int local_size = -1;
  /// True: `rank` and `size` count every process that the launcher started, dedicated aggregators included.
  /// False: they count workers only.
  bool counts_everything = false;
  bool torchrun = false;  // torchrun started this process, and its own store listens on MASTER_PORT
  std::string master_addr;
  int master_port = 0;
  bool pmix = false;  // a PMIx server started this process
  /// Equal on all processes of one launch, and different from every other launch on this host.
  std::string job;
};

/// Throws Error{invalid_argument} with the name of a variable that should be a number and is not.
LaunchEnvironment read_launch_environment(const Lookup& lookup);

}  // namespace nzcl::bootstrap
