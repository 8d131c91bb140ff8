// An owning handle of a process.
#pragma once

#include "verbs/fd.h"

namespace nzcl::verbs::cma {

/// A process of this user: another one, or this one. It is held by a pidfd, which never comes to stand for a
/// later process that gets the same id.
class Process {
 public:
  Process() = default;
  /// Throws Error{unavailable}.
  explicit Process(int pid);
  int pid() const { return pid_; }
  /// Duplicates the descriptor `fd` of that process into this one. Throws Error{unavailable} saying what
  /// forbids it.
  Fd take_fd(int fd) const;
  bool has_ended() const noexcept;

 private:
  int pid_ = -1;
  Fd fd_;
};

}  // namespace nzcl::verbs::cma
