#include "verbs/ofi/shm_trial.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "verbs/descriptors.h"
#include "verbs/pid_namespace.h"

namespace nzcl::verbs::ofi {
namespace {

/// The beginning of an offer, which travels as these bytes. The name of the file follows it.
struct OfferStart {
  std::uint64_t nonce = 0, pid_namespace = 0;
};

}  // namespace

ShmTrial::ShmTrial(std::shared_ptr<const ShmRoom> room) : room_(std::move(room)) {}

std::string ShmTrial::offer() const {
  const OfferStart start{.nonce = room_->nonce(), .pid_namespace = pid_namespace()};
  return std::string(reinterpret_cast<const char*>(&start), sizeof start) + room_->name();
}

std::string ShmTrial::try_peer(std::string_view text) {
  OfferStart start;
  if (text.size() <= sizeof start) return "libfabric-shm: a peer's offer is too short";
  std::memcpy(&start, text.data(), sizeof start);
  const std::string name(text.substr(sizeof start));
  if (name.find('/') != std::string::npos || name.find('\0') != std::string::npos ||
      !name.starts_with("nzcl-"))
    return "libfabric-shm: a peer's offer does not name a file of nzcl";
  const Fd file(::open(("/dev/shm/" + name).c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (file.get() < 0) {
    const int error = errno;
    return fmt::format("libfabric-shm: the peer's file /dev/shm/{}: {}{}; use NZCL_TRANSPORT=tcp", name,
                       error_text(error),
                       error == ENOENT   ? " (the peer sees another /dev/shm, or is on another host)"
                       : error == EACCES ? " (the peer is another user)"
                                         : "");
  }
  std::uint64_t found = 0;
  if (::pread(file.get(), &found, sizeof found, 0) != sizeof found || found != start.nonce)
    return fmt::format("libfabric-shm: /dev/shm/{} is not the peer's file; use NZCL_TRANSPORT=tcp", name);
  if (start.pid_namespace != pid_namespace())
    return "libfabric-shm: the peer is in another pid namespace; use NZCL_TRANSPORT=shm";
  return {};
}

}  // namespace nzcl::verbs::ofi
