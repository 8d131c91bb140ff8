// Starts ranks on this machine. For many hosts use a launcher: mpirun, srun, torchrun.
#pragma once

namespace perf {

/// Runs this program `count` times with the same arguments and the variables of torchrun, so that the copies
/// meet on the loopback address. Waits for all; when one fails the others get a few seconds to report and are
/// then ended. Returns 0 if all succeeded, 1 otherwise. Call it before the process has threads. Throws
/// std::system_error.
///
/// `aggregators` is the number of further copies that serve as dedicated aggregators; they get --serve=0,
/// --serve=1 and so on.
int run_local_ranks(int count, int argc, char** argv, int aggregators = 0);

}  // namespace perf
