// Whether other processes of this user may write the memory of this one, as far as the system tells without a
// trial.
#pragma once

#include <string>

namespace nzcl::verbs::cma {

/// The values that the kernel checks before it allows process_vm_writev(2) and pidfd_getfd(2), besides the
/// user. They are read because a trial is no good: a process may always write itself, and to fork a second
/// process for a trial would copy the page tables of a process that may be large, and every page that an RDMA
/// device has pinned.
struct Permission {
  int dumpable = 1;        // prctl(PR_GET_DUMPABLE); only 1 gives other processes access
  int yama_scope = 0;      // /proc/sys/kernel/yama/ptrace_scope; 0 if there is no Yama
  bool may_trace = false;  // this process has CAP_SYS_PTRACE; its peers are assumed to have it too
};

/// Reads the values of this process.
Permission read_permission();
/// What forbids the access, or an empty string.
std::string what_forbids(const Permission& permission);

}  // namespace nzcl::verbs::cma
