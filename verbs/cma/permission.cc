#include "verbs/cma/permission.h"

#include <fmt/format.h>
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <fstream>

namespace nzcl::verbs::cma {
namespace {

bool has_ptrace_capability() {
  __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  std::array<__user_cap_data_struct, _LINUX_CAPABILITY_U32S_3> data{};
  return ::syscall(SYS_capget, &header, data.data()) == 0 &&
         (data[CAP_TO_INDEX(CAP_SYS_PTRACE)].effective & CAP_TO_MASK(CAP_SYS_PTRACE)) != 0;
}

}  // namespace

Permission read_permission() {
  Permission permission;
  permission.dumpable = ::prctl(PR_GET_DUMPABLE, 0, 0, 0, 0);
  std::ifstream("/proc/sys/kernel/yama/ptrace_scope") >> permission.yama_scope;
  permission.may_trace = has_ptrace_capability();
  return permission;
}

std::string what_forbids(const Permission& p) {
  if (p.yama_scope >= 3) return "kernel.yama.ptrace_scope is 3: no process may write another's memory";
  if (p.may_trace) return {};
  if (p.yama_scope == 2)
    return "kernel.yama.ptrace_scope is 2: only processes with CAP_SYS_PTRACE may write another's memory";
  if (p.dumpable != 1)
    return fmt::format(
        "this process is not dumpable (PR_GET_DUMPABLE says {}), so that other processes of its user may not "
        "write its memory",
        p.dumpable);
  return {};  // with scope 1, the constructor of CmaDevice allows all processes of the user (PR_SET_PTRACER)
}

}  // namespace nzcl::verbs::cma
