// Numbers that look random and follow from others.
#pragma once

#include <cstdint>

namespace nzcl {

/// The finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): every bit of its result depends on every
/// bit of `x`.
constexpr std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace nzcl
