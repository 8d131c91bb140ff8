// Sockets in /dev/shm, where processes meet that have nothing else in common.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "verbs/fd.h"

namespace nzcl::verbs::shm {

/// A name that nobody can guess, in the form that travels. It is that of a socket in /dev/shm.
struct Name {
  std::uint64_t high = 0, low = 0;

  static Name random();
  std::string path() const;  // "/dev/shm/nzcl-shm-" and 32 hexadecimal digits
};

/// A socket that takes connections from processes of this user, and has a name as long as it lives.
class Listener {
 public:
  /// Throws Error{unavailable} saying what is missing. `callers` is how many may wait to be accepted.
  explicit Listener(std::size_t callers);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  const Name& name() const { return name_; }
  int fd() const { return socket_.get(); }
  /// The next connection of a process of this user; without a descriptor if there is none now.
  Fd accept() noexcept;

 private:
  const Name name_;
  Fd socket_;
};

/// A connection to the listener of that name, or none and the reason in `error`: EAGAIN if too many wait
/// there, EACCES also if it belongs to another user.
Fd call(const Name& name, int& error) noexcept;

/// Removes the names of this user's listeners that have ended without doing so, because their process was
/// killed.
void remove_leftovers() noexcept;

}  // namespace nzcl::verbs::shm
