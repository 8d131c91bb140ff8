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

namespace nzcl::verbs::cma {
namespace {

/// Bytes that one post() copies before it lets its caller poll again: a few slots.
constexpr std::uint64_t kBytesPerPost = 512 << 10;
/// Whoever waits for a write of so many bytes is woken before the next one is copied.
constexpr std::uint64_t kWokenAtOnce = 16 << 10;
constexpr std::uint32_t kLeastEntries = 64, kMostEntries = 8192;

/// An address is this, and the device's memories behind it.
struct Address {
  std::int32_t pid = 0, segment_fd = -1, event_fd = -1;
  std::uint32_t entries = 0;
  std::uint64_t segment_bytes = 0;
};

std::uint64_t bytes_of(const Write& write) {
  std::uint64_t bytes = 0;
  for (const auto& s : write.segments) bytes += s.bytes;
  return bytes;
}

}  // namespace

CmaEndpoint::CmaEndpoint(CmaDevice& device, const EndpointOptions& options)
    : device_(device),
      options_(options),
      entries_(std::bit_ceil(
          std::clamp(static_cast<std::uint32_t>(options.arrivals), kLeastEntries, kMostEntries))),
      memory_(make_memory_fd(Segment::bytes(options.peers, entries_))),
      event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      mapping_(map_shared(memory_.get(), Segment::bytes(options.peers, entries_))),
      segment_(mapping_.bytes().data(), entries_),
      peers_(options.peers),
      ready_(kMaxPosted + options.peers) {
  if (event_.get() < 0) throw Error(ErrorCode::system, fmt::format("cma: eventfd: {}", std::strerror(errno)));
  for (std::size_t i = 0; i < options.peers; ++i) rings_.emplace_back(segment_.ring(i));
}

std::string CmaEndpoint::address_for(PeerId) {
  const Address address{.pid = ::getpid(),
                        .segment_fd = memory_.get(),
                        .event_fd = event_.get(),
                        .entries = entries_,
                        .segment_bytes = mapping_.bytes().size()};
  const auto memories = device_.memories();
  std::string text(reinterpret_cast<const char*>(&address), sizeof address);
  return text.append(reinterpret_cast<const char*>(memories.data()), memories.size() * sizeof(SharedMemory));
}

void CmaEndpoint::connect(std::span<const std::string> addresses, Deadline) {
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    const std::string& text = addresses[i];
    if (text.empty()) continue;
    Address address;
    if (text.size() < sizeof address || (text.size() - sizeof address) % sizeof(SharedMemory) != 0)
      throw Error(ErrorCode::transport, fmt::format("cma: peer {} gave no usable address", i));
    std::memcpy(&address, text.data(), sizeof address);
    Peer& peer = peers_[i];
    try {
      peer.pid = address.pid;
      peer.mapping = map_shared(take_fd(address.pid, address.segment_fd).get(), address.segment_bytes);
      peer.segment = Segment(peer.mapping.bytes().data(), address.entries);
      peer.ring = RingWriter(peer.segment.ring(options_.self));
      peer.event = take_fd(address.pid, address.event_fd);
      for (std::size_t at = sizeof address; at < text.size(); at += sizeof(SharedMemory)) {
        SharedMemory memory;
        std::memcpy(&memory, text.data() + at, sizeof memory);
        peer.windows.push_back({memory.address, memory.address + memory.bytes,
                                map_shared(take_fd(address.pid, memory.fd).get(), memory.bytes)});
      }
      peer.connected = true;
    } catch (const Error& e) {
      throw Error(e.code(), fmt::format("{} (connecting to peer {})", e.what(), i));
    }
  }
}

std::size_t CmaEndpoint::post(std::span<const Write> writes) noexcept {
  std::uint64_t copied = 0;
  std::size_t n = 0, woken = 0;
  for (; n < writes.size() && copied < kBytesPerPost; ++n) {
    const Write& write = writes[n];
    Peer& peer = peers_[write.peer];
    if (peer.broken) continue;  // accepted and forgotten: its failure has been reported
    if (!peer.connected || in_flight_ >= kMaxPosted) break;
    if (write.immediate && peer.ring.full()) break;
    const std::uint64_t bytes = bytes_of(write);
    if (!copy(peer, write, bytes)) {
      peer.broken = true;
      ready_.push({.kind = Completion::Kind::failed, .peer = write.peer, .immediate = 0, .context = 0});
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
  return n;
}

std::byte* CmaEndpoint::Peer::find(std::uint64_t begin, std::uint64_t bytes) const noexcept {
  for (const Window& window : windows) {
    if (begin >= window.begin && begin + bytes <= window.end)
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

bool CmaEndpoint::copy_by_kernel(Peer& peer, const Write& write, std::uint64_t bytes) noexcept {
  std::array<iovec, kMaxSegments> from;
  std::size_t count = 0;
  for (const auto& s : write.segments) from[count++] = {const_cast<std::byte*>(s.data), s.bytes};
  std::uint64_t to = write.target.address, left = bytes;
  iovec* next = from.data();
  while (left > 0) {
    const iovec target{reinterpret_cast<void*>(to), left};
    const ssize_t moved = ::process_vm_writev(peer.pid, next, count, &target, 1, 0);
    if (moved <= 0) {
      failure_ = fmt::format("cma: write of {} bytes to peer {} (process {}): {}", bytes, write.peer,
                             peer.pid, moved == 0 ? "nothing was taken" : std::strerror(errno));
      return false;
    }
    // A part was taken: go on behind it.
    to += static_cast<std::uint64_t>(moved), left -= static_cast<std::uint64_t>(moved);
    auto skip = static_cast<std::size_t>(moved);
    while (count > 0 && skip >= next->iov_len) skip -= next->iov_len, ++next, --count;
    if (count > 0) next->iov_base = static_cast<std::byte*>(next->iov_base) + skip, next->iov_len -= skip;
  }
  return true;
}

/// One fence for all of them: the transfers of what was written to several peers overlap.
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

std::size_t CmaEndpoint::poll(std::span<Completion> out) noexcept {
  std::size_t n = ready_.pop(out);
  for (const Completion& c : out.first(n)) in_flight_ -= c.kind == Completion::Kind::written ? 1 : 0;
  std::size_t peer = next_peer_;
  for (std::size_t i = 0; i < peers_.size() && n < out.size(); ++i) {
    std::uint32_t immediate = 0;
    while (n < out.size() && rings_[peer].pop(immediate)) {
      out[n++] = {.kind = Completion::Kind::arrived,
                  .peer = Completion::kNoPeer,
                  .immediate = immediate,
                  .context = 0};
    }
    if (++peer == peers_.size()) peer = 0;
  }
  if (++next_peer_ >= peers_.size()) next_peer_ = 0;
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
