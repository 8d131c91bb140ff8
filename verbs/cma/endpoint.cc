#include "verbs/cma/endpoint.h"

#include <fmt/format.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "nzcl/error.h"
#include "verbs/cma/address.h"
#include "verbs/segment/nonce.h"

namespace nzcl::verbs::cma {

CmaEndpoint::CmaEndpoint(CmaDevice& device, const EndpointOptions& options)
    : SegmentEndpoint("cma", options, 0), device_(device), processes_(options.peers) {}

std::string CmaEndpoint::address_for(PeerId) {
  Address address{.start = {.pid = ::getpid(),
                            .segment_fd = segment_fd(),
                            .event_fd = event_fd(),
                            .entries = layout().entries,
                            .segment_bytes = layout().bytes(),
                            .nonce = nonce()},
                  .memories = {}};
  for (const auto& [range, fd] : device_.memories().within(options().allocated))
    address.memories.push_back({range.address, range.bytes, fd, 0});
  return address.encode();
}

void CmaEndpoint::connect(std::span<const std::string> addresses, Deadline) {
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    if (addresses[i].empty()) continue;
    try {
      connect_to(static_cast<PeerId>(i), addresses[i]);
    } catch (const Error& e) {
      throw Error(e.code(), fmt::format("{} (connecting to peer {})", e.what(), i));
    }
  }
}

void CmaEndpoint::connect_to(PeerId peer, const std::string& text) {
  const auto [start, memories] = Address::decode(text, layout().peers);
  // The pidfd is opened first. All descriptors are then taken from that one process, which proves by the
  // nonce that it gave the address, even if its id was used by another process before.
  Process& process = processes_[peer];
  process = Process(start.pid);
  segment::SharedByPeer shared;
  shared.segment = process.take_fd(start.segment_fd);
  if (!segment::holds(shared.segment, segment::SharedSegment::kNonceAt, start.nonce)) {
    throw Error(ErrorCode::peer_failed,
                fmt::format("cma: process {} is not the one that gave this address, which has ended; "
                            "another process has its id now",
                            start.pid));
  }
  shared.event = process.take_fd(start.event_fd);
  shared.entries = start.entries;
  shared.segment_bytes = start.segment_bytes;
  for (const SharedMemory& memory : memories)
    shared.memories.push_back({{memory.address, memory.bytes}, process.take_fd(memory.fd)});
  join(peer, std::move(shared));
}

std::string CmaEndpoint::who(PeerId peer) const { return fmt::format("process {}", processes_[peer].pid()); }

std::size_t CmaEndpoint::poll(std::span<Completion> out) noexcept {
  return poll_rings(out, [](std::size_t) { return true; });  // the peers have written everything themselves
}

/// The system call takes a process id, which may belong to another process once the peer has ended. So the
/// call is made only while the peer lives: its id cannot be used again before it has ended.
CmaEndpoint::Moved CmaEndpoint::write_unmapped(PeerId peer, const Write& write,
                                               std::uint64_t bytes) noexcept {
  const Process& process = processes_[peer];
  if (process.has_ended()) {
    failure_ =
        fmt::format("cma: write of {} bytes to peer {}: process {} has ended", bytes, peer, process.pid());
    return Moved::failed;
  }
  std::array<iovec, kMaxSegments> from;
  std::size_t count = 0;
  for (const auto& s : write.segments) from[count++] = {const_cast<std::byte*>(s.data), s.bytes};
  std::uint64_t to = write.target.address, left = bytes;
  iovec* next = from.data();
  while (left > 0) {
    const iovec target{reinterpret_cast<void*>(to), left};
    const ssize_t moved = ::process_vm_writev(process.pid(), next, count, &target, 1, 0);
    if (moved <= 0) {
      failure_ = fmt::format("cma: write of {} bytes to peer {} (process {}): {}", bytes, peer, process.pid(),
                             moved == 0 ? "nothing was taken" : std::strerror(errno));
      return Moved::failed;
    }
    // The kernel wrote only a part; go on behind it.
    to += static_cast<std::uint64_t>(moved), left -= static_cast<std::uint64_t>(moved);
    auto skip = static_cast<std::size_t>(moved);
    while (count > 0 && skip >= next->iov_len) skip -= next->iov_len, ++next, --count;
    if (count > 0) next->iov_base = static_cast<std::byte*>(next->iov_base) + skip, next->iov_len -= skip;
  }
  return Moved::all;
}

}  // namespace nzcl::verbs::cma
