// What an endpoint shares with its peers: a ring of immediates for each, and whether it sleeps.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>

namespace nzcl::verbs::cma {

inline constexpr std::size_t kLine = 64;

/// One writer, one reader, in two processes. Counters run freely; head - tail <= entries.
struct Ring {
  alignas(kLine) std::atomic<std::uint32_t> head{0};  // written by the peer
  alignas(kLine) std::atomic<std::uint32_t> tail{0};  // by the owner
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free, "two processes share them");
static_assert(sizeof(Ring) == 2 * kLine);

/// A view of a mapped segment: [sleeping][ring 0][entries 0][ring 1] ... `entries` is a power of two.
class Segment {
 public:
  Segment() = default;
  Segment(std::byte* base, std::uint32_t entries) : base_(base), entries_(entries) {}
  static std::size_t bytes(std::size_t peers, std::uint32_t entries) {
    return kLine + peers * stride(entries);
  }

  std::atomic<std::uint32_t>& sleeping() const {
    return *reinterpret_cast<std::atomic<std::uint32_t>*>(base_);
  }
  Ring& ring(std::size_t peer) const {
    return *reinterpret_cast<Ring*>(base_ + kLine + peer * stride(entries_));
  }

  bool full(std::size_t peer) const {
    const Ring& r = ring(peer);
    return r.head.load(std::memory_order_relaxed) - r.tail.load(std::memory_order_acquire) >= entries_;
  }
  /// Writer. Everything that it wrote before is visible to whoever pops this. Precondition: !full(peer).
  ///
  /// head and sleeping() are stored and then read crosswise, all sequentially consistent: either the sleeper
  /// sees the immediate after it has said that it sleeps, or the writer sees that it sleeps.
  void push(std::size_t peer, std::uint32_t immediate) const {
    Ring& r = ring(peer);
    const std::uint32_t head = r.head.load(std::memory_order_relaxed);
    slot(peer, head) = immediate;
    r.head.store(head + 1, std::memory_order_seq_cst);
  }
  bool empty(std::size_t peer) const {
    const Ring& r = ring(peer);
    return r.head.load(std::memory_order_acquire) == r.tail.load(std::memory_order_relaxed);
  }
  /// Owner, after it stored sleeping().
  bool empty_before_sleep(std::size_t peer) const {
    const Ring& r = ring(peer);
    return r.head.load(std::memory_order_seq_cst) == r.tail.load(std::memory_order_relaxed);
  }
  /// Owner. False: nothing there.
  bool pop(std::size_t peer, std::uint32_t& immediate) const {
    if (empty(peer)) return false;
    Ring& r = ring(peer);
    const std::uint32_t tail = r.tail.load(std::memory_order_relaxed);
    immediate = slot(peer, tail);
    r.tail.store(tail + 1, std::memory_order_release);
    return true;
  }

 private:
  static std::size_t stride(std::uint32_t entries) { return sizeof(Ring) + entries * sizeof(std::uint32_t); }
  std::uint32_t& slot(std::size_t peer, std::uint32_t place) const {
    return reinterpret_cast<std::uint32_t*>(&ring(peer) + 1)[place & (entries_ - 1)];
  }

  std::byte* base_ = nullptr;
  std::uint32_t entries_ = 0;
};

}  // namespace nzcl::verbs::cma
