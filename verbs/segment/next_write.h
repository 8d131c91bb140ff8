// Gets the memory of the next write to a peer ready.
#pragma once

#include <cstddef>
#include <cstdint>

#include "verbs/segment/ring.h"

namespace nzcl::verbs::segment {

/// Guesses where the next write goes. Small messages to a peer go round a ring of slots, so the next one
/// probably goes as far behind this one as this one went behind the last.
class NextWrite {
 public:
  /// Takes where a write went. Returns where the next one probably goes, or 0 if nothing can be said.
  std::uint64_t after(std::uint64_t target) noexcept {
    const std::uint64_t step = target - last_;
    const bool steady = step == step_;
    last_ = target, step_ = step;
    return steady ? target + step : 0;
  }

 private:
  std::uint64_t last_ = 0, step_ = 0;
};

/// Asks for the right to write to these lines. While this endpoint waits for the peer's answer they come over
/// from its core, which has read the message before in them; otherwise the next message would wait for that.
/// It is only a hint to the processor. On x86-64 gcc's own hint asks only for the right to read unless a
/// newer instruction set is chosen.
[[gnu::always_inline]] inline void own_lines(std::byte* begin, std::size_t bytes) noexcept {
  for (std::size_t i = 0; i < bytes; i += kLine) {
#ifdef __x86_64__
    asm volatile("prefetchw %0" ::"m"(begin[i]));
#else
    __builtin_prefetch(begin + i, 1);
#endif
  }
}

}  // namespace nzcl::verbs::segment
