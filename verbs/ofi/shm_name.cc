#include "verbs/ofi/shm_name.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <filesystem>
#include <random>

#include "verbs/pid_namespace.h"

namespace nzcl::verbs::ofi {
namespace {

/// The common prefix of all names that processes of this pid namespace make.
std::string prefix() { return fmt::format("nzcl-{}-", pid_namespace()); }

bool is_gone(pid_t pid) { return ::kill(pid, 0) != 0 && errno == ESRCH; }

}  // namespace

std::string shm_name() {
  std::random_device random;
  return fmt::format("{}{}-{:08x}{:08x}", prefix(), ::getpid(), random(), random());
}

void remove_shm_leftovers() noexcept {
  try {
    const std::string ours = prefix();
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator("/dev/shm", ignored)) {
      const std::string name = entry.path().filename();
      if (!name.starts_with(ours)) continue;
      pid_t pid = 0;
      const auto [end, error] = std::from_chars(name.data() + ours.size(), name.data() + name.size(), pid);
      if (error == std::errc() && *end == '-' && pid > 0 && is_gone(pid))
        std::filesystem::remove(entry.path(), ignored);
    }
  } catch (const std::exception&) {  // out of memory, or the directory changed; the next process tries again
  }
}

}  // namespace nzcl::verbs::ofi
