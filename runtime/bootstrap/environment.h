// What launchers tell a process through its environment. The function has no side effects, and reads
// variables only through the given lookup, so that tests can bring their own. A value that is wrong is no
// error here, because the process may not need it.
#pragma once

#include <string>
#include <vector>

#include "runtime/options/resolve.h"

namespace nzcl::bootstrap {

/// What the variables of one launcher tell. -1 or "" stands for what no variable tells.
struct Launch {
  /// "torchrun-style variables", "Open MPI", "MPICH" or "Slurm"; "": no launcher has set variables for ranks.
  std::string launcher;
  int rank = -1, size = -1;  // a dedicated aggregator may be told a size without a rank
  int local_size = -1;
  /// True: `rank` and `size` count every process that the launcher started, dedicated aggregators included.
  /// False: they count workers only.
  bool counts_everything = false;
  std::string text;     // the variables for error messages: "RANK=0 WORLD_SIZE=2"
  std::string mistake;  // which of them should be a number and is not
};

/// The innermost launcher, which is the one that started the ranks, and what else there is.
struct LaunchEnvironment : Launch {
  std::vector<Launch> outer;  // all other launchers whose variables are set
  bool local_rank = false;    // LOCAL_RANK is set, which launchers of torch's kind do
  bool torchrun = false;      // torchrun started this process, and its own store listens on MASTER_PORT
  std::string master_addr;
  std::string master_port;  // not yet read as a number
  bool pmix = false;        // a PMIx server started this process
  /// Equal on all processes of one launch, and different from every other launch on this host.
  std::string job;
};

LaunchEnvironment read_launch_environment(const Lookup& lookup);

/// Which launchers cannot both have started this process, or "" if none contradict each other. One may run
/// inside of another one: torchrun inside of all others, and mpirun inside of an allocation of Slurm. But two
/// whose numbers differ without this are a sign that one's variables are left over. `aggregators` is the
/// number of processes that WORLD_SIZE does not count.
std::string contradiction(const LaunchEnvironment& environment, int aggregators);

}  // namespace nzcl::bootstrap
