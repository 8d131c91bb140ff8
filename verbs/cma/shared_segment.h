// The memory that an endpoint shares with its peers: one ring of immediates for each peer that it reaches,
// and a flag that says whether the endpoint sleeps.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "verbs/cma/ring.h"

namespace nzcl::verbs::cma {

/// A view of a mapped segment: [sleeping, nonce][ring of peer 0][ring of peer 1] ...
///
/// How no immediate is overlooked: a reader that is about to sleep sets `sleeping` and then looks at its
/// rings once more. A writer pushes its immediate and then reads `sleeping`. Both have a sequentially
/// consistent fence between the two steps. So either the reader sees the immediate, or the writer sees that
/// the reader sleeps and wakes it.
class SharedSegment {
 public:
  SharedSegment() = default;
  SharedSegment(std::byte* base, std::uint32_t entries) : base_(base), entries_(entries) {}
  static std::size_t bytes(std::size_t peers, std::uint32_t entries) {
    return kLine + peers * Ring::bytes(entries);
  }

  std::atomic<std::uint32_t>& sleeping() const {
    return *reinterpret_cast<std::atomic<std::uint32_t>*>(base_);
  }
  /// Offset of the random number that proves which endpoint the segment belongs to (AddressStart::nonce).
  static constexpr std::size_t kNonceAt = 8;
  void set_nonce(std::uint64_t nonce) const { std::memcpy(base_ + kNonceAt, &nonce, sizeof nonce); }
  Ring ring(std::size_t peer) const { return {base_ + kLine + peer * Ring::bytes(entries_), entries_}; }

 private:
  std::byte* base_ = nullptr;
  std::uint32_t entries_ = 0;
};

}  // namespace nzcl::verbs::cma
