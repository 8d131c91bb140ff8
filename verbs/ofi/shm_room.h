// Room in /dev/shm for the endpoints of libfabric's shm.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "verbs/fd.h"

namespace nzcl::verbs::ofi {

/// The most that the file of one endpoint takes in /dev/shm, as libfabric 1.17 to 2.6 lay it out: queues of
/// 1024 commands with 4 KiB each, and 256 buffers of 32 KiB.
inline constexpr std::size_t kShmEndpointBytes = std::size_t{16} << 20;

/// Keeps room in /dev/shm for endpoints that are not open yet, by a file of that size. libfabric makes files
/// that are filled only when they are used, and a process that uses one while the file system is full ends by
/// SIGBUS. The file begins with a random number, by which peers see that their /dev/shm is this one. Only
/// this user can open it. It is removed with the object.
class ShmRoom {
 public:
  /// Throws Error{unavailable} that names /dev/shm and its sizes if there is not so much room.
  explicit ShmRoom(std::size_t endpoints);
  ~ShmRoom();
  ShmRoom(const ShmRoom&) = delete;
  ShmRoom& operator=(const ShmRoom&) = delete;

  const std::string& name() const { return name_; }  // within /dev/shm
  std::uint64_t nonce() const { return nonce_; }
  std::size_t endpoints() const { return endpoints_; }
  /// Gives the room of one endpoint back, which is to be opened at once.
  void hand_over() noexcept;

 private:
  const std::string name_;
  const std::uint64_t nonce_;
  std::size_t endpoints_;
  Fd file_;
};

/// Fills the file that libfabric has made for an endpoint, so that its use can never fail. Throws
/// Error{system} if there is no room, or if other users may open the file.
void fill_endpoint_file(const std::string& name);

/// How much of /dev/shm is free, as a part of a sentence.
std::string shm_free_text();

}  // namespace nzcl::verbs::ofi
