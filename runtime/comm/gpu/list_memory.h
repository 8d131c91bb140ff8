// How lists are copied between a GPU and pinned memory, where their indices begin at the page behind their
// values.
#pragma once

#include <algorithm>
#include <cstdint>

namespace nzcl::comm {

/// By how many blocks of threads a list is copied: enough of them to keep the bus busy, where each has enough
/// to do.
constexpr std::uint32_t list_runners(std::uint64_t bytes) {
  constexpr std::uint64_t kBytesEach = 64 << 10, kMost = 64;
  return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(bytes / kBytesEach, 1, kMost));
}

}  // namespace nzcl::comm
