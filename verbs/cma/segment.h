// What an endpoint shares with its peers: a ring of immediates from each, and whether it sleeps.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "verbs/cma/ring.h"

namespace nzcl::verbs::cma {

/// A view of a mapped segment: [sleeping][ring of peer 0][ring of peer 1] ...
///
/// Who goes to sleep says so, then looks at its rings once more; who has pushed then looks whether the reader
/// sleeps. Both put a sequentially consistent fence between the two: either the sleeper sees the immediate,
/// or the writer sees that it sleeps.
class Segment {
 public:
  Segment() = default;
  Segment(std::byte* base, std::uint32_t entries) : base_(base), entries_(entries) {}
  static std::size_t bytes(std::size_t peers, std::uint32_t entries) {
    return kLine + peers * Ring::bytes(entries);
  }

  std::atomic<std::uint32_t>& sleeping() const {
    return *reinterpret_cast<std::atomic<std::uint32_t>*>(base_);
  }
  Ring ring(std::size_t peer) const { return {base_ + kLine + peer * Ring::bytes(entries_), entries_}; }

 private:
  std::byte* base_ = nullptr;
  std::uint32_t entries_ = 0;
};

}  // namespace nzcl::verbs::cma
