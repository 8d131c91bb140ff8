// SipHash-2-4 of Aumasson and Bernstein: a checksum under a key, which nobody can make who does not know it.
#pragma once

#include <array>
#include <bit>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace nzcl {

struct SipKey {
  std::uint64_t low = 0, high = 0;
};

/// The four words of the state before the first byte.
inline constexpr std::array<std::uint64_t, 4> sip_start(const SipKey& key) {
  return {key.low ^ 0x736f6d6570736575, key.high ^ 0x646f72616e646f6d, key.low ^ 0x6c7967656e657261,
          key.high ^ 0x7465646279746573};
}

/// Takes bytes in parts, of which all but the last are multiples of 8 bytes long.
class SipHash {
 public:
  explicit SipHash(const SipKey& key) {
    const auto start = sip_start(key);
    a_ = start[0], b_ = start[1], c_ = start[2], d_ = start[3];
  }

  void add(std::span<const std::byte> bytes) noexcept {
    assert(bytes_ % 8 == 0);
    bytes_ += bytes.size();
    for (; bytes.size() >= 8; bytes = bytes.subspan(8)) {
      std::uint64_t word;
      std::memcpy(&word, bytes.data(), 8);
      take(word);
    }
    for (std::size_t i = 0; i < bytes.size(); ++i)
      tail_ |= std::to_integer<std::uint64_t>(bytes[i]) << (8 * i);
  }
  std::uint64_t finish() noexcept {
    take(tail_ | bytes_ << 56);
    c_ ^= 0xff;
    for (int i = 0; i < 4; ++i) round();
    return a_ ^ b_ ^ c_ ^ d_;
  }

 private:
  static_assert(std::endian::native == std::endian::little);
  void take(std::uint64_t word) noexcept {
    d_ ^= word;
    round();
    round();
    a_ ^= word;
  }
  void round() noexcept {
    a_ += b_;
    b_ = std::rotl(b_, 13) ^ a_;
    a_ = std::rotl(a_, 32);
    c_ += d_;
    d_ = std::rotl(d_, 16) ^ c_;
    a_ += d_;
    d_ = std::rotl(d_, 21) ^ a_;
    c_ += b_;
    b_ = std::rotl(b_, 17) ^ c_;
    c_ = std::rotl(c_, 32);
  }

  std::uint64_t a_, b_, c_, d_;
  std::uint64_t tail_ = 0, bytes_ = 0;
};

}  // namespace nzcl
