#include "verbs/descriptors.h"

#include <dirent.h>
#include <fmt/format.h>
#include <sys/resource.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>

namespace nzcl::verbs {
namespace {

/// Counts the entries of /proc/self/fd. Returns 0 if it cannot be read, for which a descriptor is needed too.
std::uint64_t count_open() {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir("/proc/self/fd"), ::closedir);
  std::uint64_t count = 0;
  while (folder && ::readdir(folder.get()) != nullptr) ++count;
  return count < 3 ? 0 : count - 3;  // ".", ".." and the descriptor of the folder itself
}

}  // namespace

Descriptors read_descriptors() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  return {.open = count_open(), .soft = limit.rlim_cur, .hard = limit.rlim_max};
}

void make_room_for_descriptors(std::uint64_t more) noexcept {
  const Descriptors now = read_descriptors();
  if (now.open + more <= now.soft || now.soft >= now.hard) return;
  const rlimit raised{.rlim_cur = now.hard, .rlim_max = now.hard};
  ::setrlimit(RLIMIT_NOFILE, &raised);  // if this is refused, the error comes from who finds no descriptor
}

std::string error_text(int error) {
  const std::string text = std::strerror(error);
  if (error == EMFILE) {
    const Descriptors now = read_descriptors();
    return fmt::format(
        "{} (this process may have {} descriptors open, as RLIMIT_NOFILE says, whose hard limit is {}; raise "
        "it, for example by ulimit -n)",
        text, now.soft, now.hard);
  }
  if (error == ENFILE) {
    std::uint64_t most = 0;
    std::ifstream("/proc/sys/fs/file-max") >> most;
    return fmt::format("{} (the machine may have {} files open, as fs.file-max says)", text, most);
  }
  return text;
}

}  // namespace nzcl::verbs
