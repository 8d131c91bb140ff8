// Division that rounds up.
#pragma once

#include <cstdint>

namespace nzcl {

/// Returns how many parts of `size` it takes to hold `n`, such as the blocks of a tensor; it never wraps.
constexpr std::uint64_t ceil_div(std::uint64_t n, std::uint64_t size) noexcept {
  return n / size + (n % size != 0);
}

}  // namespace nzcl
