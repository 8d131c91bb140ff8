#include "verbs/segment/endpoint.h"

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "nzcl/error.h"
#include "verbs/descriptors.h"
#include "verbs/random.h"

namespace nzcl::verbs::segment {
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

SegmentEndpoint::SegmentEndpoint(const char* transport, const EndpointOptions& options, std::size_t bounce)
    : options_(options),
      ring_of_(number_rings(options)),
      reached_(count_reached(options)),
      entries_(entries_for(options)),
      bounce_(bounce),
      nonce_(random_number()),
      memory_(make_memory_fd(layout().bytes())),
      event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      mapping_(map_shared(memory_.get(), layout().bytes())),
      segment_(mapping_.bytes().data(), layout()),
      peers_(options.peers),
      ready_(kMaxPosted + options.peers) {
  if (event_.get() < 0)
    throw Error(ErrorCode::system, fmt::format("{}: eventfd: {}", transport, error_text(errno)));
  segment_.set_nonce(nonce_);
  for (std::size_t i = 0; i < reached_; ++i) rings_.emplace_back(segment_.ring(i));
}

void SegmentEndpoint::join(PeerId id, SharedByPeer shared) {
  Peer& peer = peers_[id];
  peer.mapping = map_shared(shared.segment.get(), shared.segment_bytes);
  peer.segment = SharedSegment(peer.mapping.bytes().data(), {reached_, shared.entries, bounce_});
  peer.ring = RingWriter(peer.segment.ring(ring_of_[options_.self]));
  for (const SharedByPeer::Memory& memory : shared.memories) {
    const auto [address, bytes] = memory.range;
    peer.windows.push_back({address, address + bytes, map_shared(memory.fd.get(), bytes)});
  }
  peer.connected = true;
}

std::size_t SegmentEndpoint::post(std::span<const Write> writes) noexcept {
  std::uint64_t copied = 0;
  std::size_t n = 0, woken = 0;
  for (; n < writes.size() && copied < kBytesPerPost; ++n) {
    const Write& write = writes[n];
    Peer& peer = peers_[write.peer];
    if (peer.broken) continue;  // dropped: the failure of this peer was reported
    if (!peer.connected || in_flight_ >= kMaxPosted) break;
    const std::uint64_t bytes = bytes_of(write);
    const Moved moved = write.immediate && peer.ring.full() ? Moved::nothing_yet : copy(write, bytes);
    if (moved == Moved::nothing_yet) {
      std::string why = why_lost(write.peer);
      if (why.empty()) break;
      failure_ = std::move(why);  // it will never make room
    }
    if (moved != Moved::all) {
      lose(write.peer);
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

void SegmentEndpoint::lose(PeerId id) noexcept {
  if (peers_[id].broken) return;
  peers_[id].broken = true;
  ready_.push({.kind = Completion::Kind::failed, .peer = id, .immediate = 0, .context = 0});
}

std::byte* SegmentEndpoint::Peer::find(std::uint64_t begin, std::uint64_t bytes) const noexcept {
  for (const Window& window : windows) {
    if (begin >= window.begin && begin <= window.end && bytes <= window.end - begin)
      return window.mapping.bytes().data() + (begin - window.begin);
  }
  return nullptr;
}

const std::byte* SegmentEndpoint::view(PeerId peer, RemoteMemory memory, std::size_t bytes) const noexcept {
  return peers_[peer].find(memory.address, bytes);
}

SegmentEndpoint::Moved SegmentEndpoint::copy(const Write& write, std::uint64_t bytes) noexcept {
  std::byte* to = peers_[write.peer].find(write.target.address, bytes);
  if (to == nullptr) return write_unmapped(write.peer, write, bytes);
  for (const auto& s : write.segments) {
    std::memcpy(to, s.data, s.bytes);
    to += s.bytes;
  }
  return Moved::all;
}

/// Wakes the receivers of these writes that sleep and have something to take. There is one fence for all
/// writes, so that the transfers of what was written to several peers overlap.
void SegmentEndpoint::wake_readers(std::span<const Write> writes) noexcept {
  if (writes.empty()) return;
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (const Write& write : writes) {
    Peer& peer = peers_[write.peer];
    if (!write.immediate && !peer.to_wake) continue;
    peer.to_wake = false;
    auto& sleeping = peer.segment.sleeping();
    if (sleeping.load(std::memory_order_relaxed) == 0 || sleeping.exchange(0) == 0) continue;
    if (!peer.broken && !wake(write.peer)) lose(write.peer);
  }
}

void SegmentEndpoint::ring(const Fd& event) noexcept {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto ignored = ::write(event.get(), &one, sizeof one);
}

/// Gets the memory ready that the next small messages will go to.
void SegmentEndpoint::expect_more(std::span<const Write> writes) noexcept {
  for (const Write& write : writes) {
    const std::uint64_t bytes = bytes_of(write);
    if (bytes < kLine || bytes > kReadyBytes) continue;  // the former carry no message
    Peer& peer = peers_[write.peer];
    const std::uint64_t next = peer.next.after(write.target.address);
    std::byte* const begin = next != 0 ? peer.find(next, bytes) : nullptr;
    if (begin != nullptr) own_lines(begin, bytes);
  }
}

bool SegmentEndpoint::prepare_wait() noexcept {
  std::uint64_t count = 0;
  [[maybe_unused]] const auto ignored = ::read(event_.get(), &count, sizeof count);
  segment_.sleeping().store(1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  bool something = !ready_.empty() || has_more_to_poll();
  for (const RingReader& ring : rings_) something |= !ring.empty();
  if (something) segment_.sleeping().store(0, std::memory_order_relaxed);
  return !something;
}

}  // namespace nzcl::verbs::segment
