// Numbers that look random and follow from others, so that they may be drawn in any order.
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

/// A key that depends on all four numbers. The first two steps are the same for all that have `seed` and `a`
/// in common.
constexpr std::uint64_t make_key(std::uint64_t seed, std::uint64_t a) noexcept { return mix(mix(seed) ^ a); }
constexpr std::uint64_t make_key(std::uint64_t seed, std::uint64_t a, std::uint64_t b,
                                 std::uint64_t c) noexcept {
  return mix(mix(make_key(seed, a) ^ b) ^ c);
}

/// 32 random bits for element `i` under a key. If the whole key were added to `i`, the sequence of one key
/// would be that of another one, shifted; so its two halves enter in different steps. The multipliers are
/// those of "lowbias32" (Wellons, hash-prospector). hash_lanes() in runtime/compress/random-inl.h computes
/// the same in vectors.
constexpr std::uint32_t hash32(std::uint64_t key, std::uint32_t i) noexcept {
  std::uint32_t z = i * 0x9e3779b9u + static_cast<std::uint32_t>(key);
  z = (z ^ z >> 16) * 0x7feb352du;
  z ^= static_cast<std::uint32_t>(key >> 32);
  z = (z ^ z >> 15) * 0x846ca68bu;
  return z ^ z >> 16;
}

}  // namespace nzcl
