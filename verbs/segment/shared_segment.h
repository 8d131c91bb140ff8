// The memory that an endpoint shares with its peers: for each peer that it reaches a ring of immediates and,
// where the transport wants one, an area for bytes; and a flag that says whether the endpoint sleeps.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "verbs/segment/ring.h"

namespace nzcl::verbs::segment {

/// Limits for the number of entries of a ring, which is a power of two.
inline constexpr std::uint32_t kLeastEntries = 64, kMostEntries = 8192;

/// A view of a mapped segment:
/// [sleeping, nonce][ring of peer 0][ring of peer 1] ... [bounce area of peer 0][bounce area of peer 1] ...
/// Bounce areas begin at a page.
///
/// How no immediate is overlooked: a reader that is about to sleep sets `sleeping` and then looks at its
/// rings once more. A writer pushes its immediate and then reads `sleeping`. Both have a sequentially
/// consistent fence between the two steps. So either the reader sees the immediate, or the writer sees that
/// the reader sleeps and wakes it.
class SharedSegment {
 public:
  /// How a segment is laid out. `bounce` is the size of each area, a multiple of a page; 0: there are none.
  struct Layout {
    std::size_t peers = 0;
    std::uint32_t entries = 0;
    std::size_t bounce = 0;

    std::size_t bounce_begin() const {
      const std::size_t end = kLine + peers * Ring::bytes(entries);
      return bounce == 0 ? end : (end + kPage - 1) / kPage * kPage;
    }
    std::size_t bytes() const { return bounce_begin() + peers * bounce; }
  };

  SharedSegment() = default;
  SharedSegment(std::byte* base, const Layout& layout) : base_(base), layout_(layout) {}

  std::atomic<std::uint32_t>& sleeping() const {
    return *reinterpret_cast<std::atomic<std::uint32_t>*>(base_);
  }
  /// Offset of the random number that proves which endpoint the segment belongs to.
  static constexpr std::size_t kNonceAt = 8;
  void set_nonce(std::uint64_t nonce) const { std::memcpy(base_ + kNonceAt, &nonce, sizeof nonce); }
  Ring ring(std::size_t peer) const {
    return {base_ + kLine + peer * Ring::bytes(layout_.entries), layout_.entries};
  }
  std::byte* bounce(std::size_t peer) const { return base_ + layout_.bounce_begin() + peer * layout_.bounce; }

 private:
  static constexpr std::size_t kPage = 4096;
  std::byte* base_ = nullptr;
  Layout layout_;
};

/// What is wrong with the sizes of a segment that a peer speaks of, or nullptr.
inline const char* wrong_with(const SharedSegment::Layout& layout, std::uint64_t bytes) {
  if (!std::has_single_bit(layout.entries) || layout.entries < kLeastEntries || layout.entries > kMostEntries)
    return "the size of its rings is out of range";
  if (bytes != layout.bytes()) return "the size of its segment does not match its rings";
  return nullptr;
}

}  // namespace nzcl::verbs::segment
