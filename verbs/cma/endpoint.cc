#include "verbs/cma/endpoint.h"

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "nzcl/error.h"
#include "verbs/cma/nonce.h"
#include "verbs/descriptors.h"

namespace nzcl::verbs::cma {
namespace {

/// After this many bytes post() accepts no more writes, so that its caller can poll between two large groups
/// of writes. It is the size of a few slots.
constexpr std::uint64_t kBytesPerPost = 512 << 10;
/// After a write of at least this size its receiver is woken at once, before the next write is copied.
/// Receivers of smaller writes are woken together at the end of post().
constexpr std::uint64_t kWokenAtOnce = 16 << 10;

/// The memory of the next message to a peer is got ready for writing if the present message, whose length the
/// next one is taken to have, has at most this many bytes. For longer ones that takes more time than waiting
/// for their first lines.
constexpr std::uint64_t kReadyBytes = 4 * kLine;

std::uint64_t bytes_of(const Write& write) {
  std::uint64_t bytes = 0;
  for (const auto& s : write.segments) bytes += s.bytes;
  return bytes;
}

/// By peer: the number of its ring, and for those that are not reached the number that the next one has.
std::vector<std::uint32_t> number_rings(const EndpointOptions& options) {
  std::vector<std::uint32_t> numbers(options.peers);
  std::uint32_t next = 0;
  for (PeerId peer = 0; peer < options.peers; ++peer) {
    numbers[peer] = next;
    next += options.reaches(peer) ? 1 : 0;
  }
  return numbers;
}

std::size_t count_reached(const EndpointOptions& options) {
  std::size_t count = 0;
  for (PeerId peer = 0; peer < options.peers; ++peer) count += options.reaches(peer) ? 1 : 0;
  return count;
}

/// A ring has room for twice a peer's share of all arrivals. If one sends more, its post() accepts fewer.
std::uint32_t entries_for(const EndpointOptions& options) {
  const std::size_t share = 2 * options.arrivals / std::max<std::size_t>(options.peers, 1);
  return std::bit_ceil(
      static_cast<std::uint32_t>(std::clamp<std::size_t>(share, kLeastEntries, kMostEntries)));
}

}  // namespace

CmaEndpoint::CmaEndpoint(CmaDevice& device, const EndpointOptions& options)
    : device_(device),
      options_(options),
      ring_of_(number_rings(options)),
      reached_(count_reached(options)),
      entries_(entries_for(options)),
      nonce_(random_number()),
      memory_(make_memory_fd(SharedSegment::bytes(reached_, entries_))),
      event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      mapping_(map_shared(memory_.get(), SharedSegment::bytes(reached_, entries_))),
      segment_(mapping_.bytes().data(), entries_),
      peers_(options.peers),
      ready_(kMaxPosted + options.peers) {
  if (event_.get() < 0) throw Error(ErrorCode::system, fmt::format("cma: eventfd: {}", error_text(errno)));
  segment_.set_nonce(nonce_);
  for (std::size_t i = 0; i < reached_; ++i) rings_.emplace_back(segment_.ring(i));
}

std::string CmaEndpoint::address_for(PeerId) {
  return Address{.start = {.pid = ::getpid(),
                           .segment_fd = memory_.get(),
                           .event_fd = event_.get(),
                           .entries = entries_,
                           .segment_bytes = mapping_.bytes().size(),
                           .nonce = nonce_},
                 .memories = device_.memories(options_.allocated)}
      .encode();
}

void CmaEndpoint::connect(std::span<const std::string> addresses, Deadline) {
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    if (addresses[i].empty()) continue;
    try {
      connect_to(peers_[i], addresses[i]);
    } catch (const Error& e) {
      throw Error(e.code(), fmt::format("{} (connecting to peer {})", e.what(), i));
    }
  }
}

void CmaEndpoint::connect_to(Peer& peer, const std::string& text) const {
  const auto [start, memories] = Address::decode(text, reached_);
  // The pidfd is opened first. All descriptors are then taken from that one process, which proves by the
  // nonce that it gave the address, even if its id was used by another process before.
  peer.process = Process(start.pid);
  const Fd segment = peer.process.take_fd(start.segment_fd);
  if (!holds(segment, SharedSegment::kNonceAt, start.nonce)) {
    throw Error(ErrorCode::peer_failed,
                fmt::format("cma: process {} is not the one that gave this address, which has ended; "
                            "another process has its id now",
                            start.pid));
  }
  peer.mapping = map_shared(segment.get(), start.segment_bytes);
  peer.segment = SharedSegment(peer.mapping.bytes().data(), start.entries);
  peer.ring = RingWriter(peer.segment.ring(ring_of_[options_.self]));
  peer.event = peer.process.take_fd(start.event_fd);
  for (const SharedMemory& memory : memories) {
    peer.windows.push_back({memory.address, memory.address + memory.bytes,
                            map_shared(peer.process.take_fd(memory.fd).get(), memory.bytes)});
  }
  peer.connected = true;
}

std::size_t CmaEndpoint::post(std::span<const Write> writes) noexcept {
  std::uint64_t copied = 0;
  std::size_t n = 0, woken = 0;
  for (; n < writes.size() && copied < kBytesPerPost; ++n) {
    const Write& write = writes[n];
    Peer& peer = peers_[write.peer];
    if (peer.broken) continue;  // dropped: the failure of this peer was reported
    if (!peer.connected || in_flight_ >= kMaxPosted) break;
    if (write.immediate && peer.ring.full()) {
      if (!peer.process.has_ended()) break;
      // It will never make room in its ring.
      failure_ = fmt::format("cma: process {} has ended", peer.process.pid());
      lose(peer, write.peer);
      continue;
    }
    const std::uint64_t bytes = bytes_of(write);
    if (!copy(peer, write, bytes)) {
      lose(peer, write.peer);
      continue;
    }
    copied += bytes;
    if (write.immediate) peer.ring.push(*write.immediate);
    ++in_flight_;
    ready_.push(
        {.kind = Completion::Kind::written, .peer = write.peer, .immediate = 0, .context = write.context});
    if (bytes < kWokenAtOnce) continue;
    wake_readers(writes.subspan(woken, n + 1 - woken));
    woken = n + 1;
  }
  wake_readers(writes.subspan(woken, n - woken));
  expect_more(writes.first(n));
  return n;
}

void CmaEndpoint::lose(Peer& peer, PeerId id) noexcept {
  peer.broken = true;
  ready_.push({.kind = Completion::Kind::failed, .peer = id, .immediate = 0, .context = 0});
}

std::byte* CmaEndpoint::Peer::find(std::uint64_t begin, std::uint64_t bytes) const noexcept {
  for (const Window& window : windows) {
    if (begin >= window.begin && begin <= window.end && bytes <= window.end - begin)
      return window.mapping.bytes().data() + (begin - window.begin);
  }
  return nullptr;
}

const std::byte* CmaEndpoint::view(PeerId peer, RemoteMemory memory, std::size_t bytes) const noexcept {
  return peers_[peer].find(memory.address, bytes);
}

bool CmaEndpoint::copy(Peer& peer, const Write& write, std::uint64_t bytes) noexcept {
  std::byte* to = peer.find(write.target.address, bytes);
  if (to == nullptr) return copy_by_kernel(peer, write, bytes);
  for (const auto& s : write.segments) {
    std::memcpy(to, s.data, s.bytes);
    to += s.bytes;
  }
  return true;
}

/// The system call takes a process id, which may belong to another process once the peer has ended. So the
/// call is made only while the peer lives: its id cannot be used again before it has ended.
bool CmaEndpoint::copy_by_kernel(Peer& peer, const Write& write, std::uint64_t bytes) noexcept {
  if (peer.process.has_ended()) {
    failure_ = fmt::format("cma: write of {} bytes to peer {}: process {} has ended", bytes, write.peer,
                           peer.process.pid());
    return false;
  }
  std::array<iovec, kMaxSegments> from;
  std::size_t count = 0;
  for (const auto& s : write.segments) from[count++] = {const_cast<std::byte*>(s.data), s.bytes};
  std::uint64_t to = write.target.address, left = bytes;
  iovec* next = from.data();
  while (left > 0) {
    const iovec target{reinterpret_cast<void*>(to), left};
    const ssize_t moved = ::process_vm_writev(peer.process.pid(), next, count, &target, 1, 0);
    if (moved <= 0) {
      failure_ = fmt::format("cma: write of {} bytes to peer {} (process {}): {}", bytes, write.peer,
                             peer.process.pid(), moved == 0 ? "nothing was taken" : std::strerror(errno));
      return false;
    }
    // The kernel wrote only a part; go on behind it.
    to += static_cast<std::uint64_t>(moved), left -= static_cast<std::uint64_t>(moved);
    auto skip = static_cast<std::size_t>(moved);
    while (count > 0 && skip >= next->iov_len) skip -= next->iov_len, ++next, --count;
    if (count > 0) next->iov_base = static_cast<std::byte*>(next->iov_base) + skip, next->iov_len -= skip;
  }
  return true;
}

/// Wakes the receivers of these immediates that sleep. There is one fence for all writes, so that the
/// transfers of what was written to several peers overlap.
void CmaEndpoint::wake_readers(std::span<const Write> writes) noexcept {
  if (writes.empty()) return;
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (const Write& write : writes) {
    if (!write.immediate) continue;
    const Peer& peer = peers_[write.peer];
    auto& sleeping = peer.segment.sleeping();
    if (sleeping.load(std::memory_order_relaxed) == 0 || sleeping.exchange(0) == 0) continue;
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto ignored = ::write(peer.event.get(), &one, sizeof one);
  }
}

/// Gets the memory ready that the next small messages will go to.
void CmaEndpoint::expect_more(std::span<const Write> writes) noexcept {
  for (const Write& write : writes) {
    const std::uint64_t bytes = bytes_of(write);
    if (bytes < kLine || bytes > kReadyBytes) continue;  // the former carry no message
    Peer& peer = peers_[write.peer];
    const std::uint64_t next = peer.next.after(write.target.address);
    std::byte* const begin = next != 0 ? peer.find(next, bytes) : nullptr;
    if (begin != nullptr) own_lines(begin, bytes);
  }
}

std::size_t CmaEndpoint::poll(std::span<Completion> out) noexcept {
  std::size_t n = ready_.pop(out);
  for (const Completion& c : out.first(n)) in_flight_ -= c.kind == Completion::Kind::written ? 1 : 0;
  std::size_t ring = next_ring_;
  for (std::size_t i = 0; i < rings_.size() && n < out.size(); ++i) {
    std::uint32_t immediate = 0;
    while (n < out.size() && rings_[ring].pop(immediate)) {
      out[n++] = {.kind = Completion::Kind::arrived,
                  .peer = Completion::kNoPeer,
                  .immediate = immediate,
                  .context = 0};
    }
    if (++ring == rings_.size()) ring = 0;
  }
  if (++next_ring_ >= rings_.size()) next_ring_ = 0;
  return n;
}

bool CmaEndpoint::prepare_wait() noexcept {
  std::uint64_t count = 0;
  [[maybe_unused]] const auto ignored = ::read(event_.get(), &count, sizeof count);
  segment_.sleeping().store(1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  bool something = !ready_.empty();
  for (const RingReader& ring : rings_) something |= !ring.empty();
  if (something) segment_.sleeping().store(0, std::memory_order_relaxed);
  return !something;
}

}  // namespace nzcl::verbs::cma
