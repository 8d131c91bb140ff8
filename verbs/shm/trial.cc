#include "verbs/shm/trial.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>

#include "verbs/descriptors.h"

namespace nzcl::verbs::shm {

ShmTrial::ShmTrial(const TrialOptions& options) : listener_(options.peers + 16) {}

std::string ShmTrial::offer() const {
  const Name name = listener_.name();
  return {reinterpret_cast<const char*>(&name), sizeof name};
}

std::string ShmTrial::try_peer(std::string_view offer) {
  Name name;
  if (offer.size() != sizeof name) return "shm: a peer's offer has a wrong length";
  std::memcpy(&name, offer.data(), sizeof name);
  int error = 0;
  static_cast<void>(call(name, error));
  if (error == 0) return {};
  return fmt::format("shm: the peer's socket {}: {}{}; use NZCL_TRANSPORT=tcp", name.path(),
                     error_text(error),
                     error == ENOENT         ? " (the peer sees another /dev/shm, or is on another host)"
                     : error == EACCES       ? " (the peer is another user)"
                     : error == ECONNREFUSED ? " (the peer has ended)"
                                             : "");
}

}  // namespace nzcl::verbs::shm
