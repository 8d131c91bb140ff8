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

namespace nzcl::verbs::cma {

namespace {

/// How many peers may be held at a time.
std::size_t most_held(const EndpointOptions& options, std::size_t peers) {
  return options.peer_descriptors == 0 ? peers : options.peer_descriptors / HeldPeers::kDescriptors;
}

}  // namespace

CmaEndpoint::CmaEndpoint(CmaDevice& device, const EndpointOptions& options)
    : SegmentEndpoint("cma", options, 0),
      device_(device),
      held_(layout().peers, most_held(options, layout().peers)) {}

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
  const Process& process = held_.open(ring_of(peer), start).process;
  segment::SharedByPeer shared;
  shared.segment = process.take_fd(start.segment_fd);
  shared.entries = start.entries;
  shared.segment_bytes = start.segment_bytes;
  for (const SharedMemory& memory : memories)
    shared.memories.push_back({{memory.address, memory.bytes}, process.take_fd(memory.fd)});
  join(peer, std::move(shared));
}

/// A peer that cannot be looked at, for want of a descriptor, may live.
std::string CmaEndpoint::why_lost(PeerId peer) noexcept {
  const HeldPeers::Held* held = held_.get(ring_of(peer));
  if (held == nullptr)
    return held_.error().code() == ErrorCode::system ? std::string() : held_.error().what();
  return held->process.has_ended() ? fmt::format("cma: process {} has ended", held->process.pid())
                                   : std::string();
}

bool CmaEndpoint::wake(PeerId peer) noexcept {
  const HeldPeers::Held* held = held_.get(ring_of(peer));
  if (held == nullptr) {
    failure_ = fmt::format("{} (waking peer {})", held_.error().what(), peer);
    return false;
  }
  ring(held->event);
  return true;
}

std::size_t CmaEndpoint::poll(std::span<Completion> out) noexcept {
  return poll_rings(out, [](std::size_t) { return true; });  // the peers have written everything themselves
}

/// The system call takes a process id, which may belong to another process once the peer has ended. So the
/// call is made only while the peer lives: its id cannot be used again before it has ended.
CmaEndpoint::Moved CmaEndpoint::write_unmapped(PeerId peer, const Write& write,
                                               std::uint64_t bytes) noexcept {
  const HeldPeers::Held* held = held_.get(ring_of(peer));
  if (held == nullptr) {
    failure_ = fmt::format("{} (writing {} bytes to peer {})", held_.error().what(), bytes, peer);
    return Moved::failed;
  }
  const Process& process = held->process;
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
