// Random numbers without a state: each is a hash of what it is for, so that they may be drawn in any order.
#pragma once

#include <cstdint>

namespace nzcl::compress {

/// A good 64-bit mix (SplitMix64's finalizer; Steele, Lea and Flood, OOPSLA 2014).
constexpr std::uint64_t mix64(std::uint64_t z) noexcept {
  z += 0x9e3779b97f4a7c15;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
  z = (z ^ z >> 27) * 0x94d049bb133111eb;
  return z ^ z >> 31;
}

/// A key that depends on all four numbers.
constexpr std::uint64_t make_key(std::uint64_t seed, std::uint64_t a, std::uint64_t b,
                                 std::uint64_t c) noexcept {
  return mix64(mix64(mix64(mix64(seed) ^ a) ^ b) ^ c);
}

/// 32 random bits for element `i` under a key. If the whole key were added to `i`, the sequence of one key
/// would be that of another one, shifted; so its two halves enter in different steps. The multipliers are
/// those of "lowbias32" (Wellons, hash-prospector). hash_lanes() in random-inl.h computes the same in
/// vectors.
constexpr std::uint32_t hash32(std::uint64_t key, std::uint32_t i) noexcept {
  std::uint32_t z = i * 0x9e3779b9u + static_cast<std::uint32_t>(key);
  z = (z ^ z >> 16) * 0x7feb352du;
  z ^= static_cast<std::uint32_t>(key >> 32);
  z = (z ^ z >> 15) * 0x846ca68bu;
  return z ^ z >> 16;
}

}  // namespace nzcl::compress
