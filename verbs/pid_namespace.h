// Whether process ids of other processes mean the same here.
#pragma once

#include <sys/stat.h>

#include <cstdint>

namespace nzcl::verbs {

/// The number of this process's pid namespace. Equal for processes of one machine that see each other's
/// process ids. 0 if the system does not say it.
inline std::uint64_t pid_namespace() {
  struct stat space {};
  return ::stat("/proc/self/ns/pid", &space) == 0 ? space.st_ino : 0;
}

}  // namespace nzcl::verbs
