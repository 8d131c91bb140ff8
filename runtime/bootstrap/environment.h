// What launchers tell a process through its environment. Pure: tests bring their own variables.
#pragma once

#include <string>

#include "runtime/options/resolve.h"

namespace nzcl::bootstrap {

/// -1 and "" = not told.
struct LaunchEnvironment {
  std::string launcher;  // "torchrun-style variables", "Open MPI", "MPICH", "Slurm"; "" = no rank variables
  int rank = -1, size = -1;  // a dedicated aggregator may have a size without a rank
  int local_size = -1;
  /// The launcher numbers every process it starts, dedicated aggregators included. Otherwise RANK and
  /// WORLD_SIZE count workers.
  bool counts_everything = false;
  bool torchrun = false;  // torchrun itself, whose own store listens on MASTER_PORT
  std::string master_addr;
  int master_port = 0;
  bool pmix = false;  // a PMIx server started this process
  std::string job;  // the same for all processes of one launch and for no others on this host; "" = not told
};

/// Throws Error{invalid_argument} naming the variable that is not a number.
LaunchEnvironment read_launch_environment(const Lookup& lookup);

}  // namespace nzcl::bootstrap
