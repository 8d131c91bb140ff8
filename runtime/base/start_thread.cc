#include "runtime/base/start_thread.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <cstdint>
#include <fstream>
#include <string_view>

#include "nzcl/error.h"
#include "runtime/base/list_text.h"

namespace nzcl {
namespace {

std::string first_word(const std::string& path) {
  std::string word;
  std::ifstream(path) >> word;
  return word;
}

/// The folder of this process's control group that bounds the number of threads, or "" if none can be found.
std::string control_group() {
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const bool first = line.find(":pids:") != std::string::npos;  // version 1
    if (!first && !line.starts_with("0::")) continue;
    const std::string root = first ? "/sys/fs/cgroup/pids" : "/sys/fs/cgroup";
    const std::string path = root + line.substr(line.rfind(':') + 1);
    // Within a container the path may be that of the host, where this process cannot look.
    if (!first_word(path + "/pids.max").empty()) return path;
    if (!first_word(root + "/pids.max").empty()) return root;
  }
  return {};
}

std::string threads_of_this_process() {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    constexpr std::string_view kThreads = "Threads:\t";
    if (line.starts_with(kThreads)) return line.substr(kThreads.size());
  }
  return "?";
}

std::string limits() {
  std::string all;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NPROC, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
    append_item(all, fmt::format("{} of this user (RLIMIT_NPROC, ulimit -u)", limit.rlim_cur));
  const std::string group = control_group();
  if (const std::string most = group.empty() ? "" : first_word(group + "/pids.max");
      !most.empty() && most != "max") {
    append_item(all, fmt::format("{} of the control group, which has {} ({}/pids.max)", most,
                                 first_word(group + "/pids.current"), group));
  }
  if (::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
    append_item(all, fmt::format("{} MiB of address space, stacks included (RLIMIT_AS, ulimit -v)",
                                 limit.rlim_cur >> 20));
  append_item(
      all, fmt::format("{} of the machine (kernel.threads-max)", first_word("/proc/sys/kernel/threads-max")));
  return all;
}

}  // namespace

void reject_thread(const std::string& name, const std::error_code& error) {
  throw Error(
      ErrorCode::system,
      fmt::format("the thread {} cannot be started: {}; this process has {} thread(s), and the limits for "
                  "threads and processes are: {}",
                  name, error.message(), threads_of_this_process(), limits()));
}

}  // namespace nzcl
