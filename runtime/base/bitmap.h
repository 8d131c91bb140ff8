// Bit-packed bitmaps: bit b is bit b % 64 of word b / 64. A bit stands for a block everywhere in nzcl.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

namespace nzcl {

/// How many words are needed for `bits` bits.
constexpr std::uint64_t words_for(std::uint64_t bits) noexcept { return bits / 64 + (bits % 64 != 0); }

/// A word of which the lowest `bits` bits are set; `bits` is 0 to 64.
constexpr std::uint64_t low_bits(std::uint64_t bits) noexcept {
  return bits >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << bits) - 1;
}

constexpr bool test_bit(std::span<const std::uint64_t> bitmap, std::uint64_t bit) noexcept {
  return (bitmap[bit / 64] >> (bit % 64) & 1) != 0;
}

constexpr void set_bit(std::span<std::uint64_t> bitmap, std::uint64_t bit) noexcept {
  bitmap[bit / 64] |= std::uint64_t{1} << (bit % 64);
}

/// Counts the set bits in all words of the span.
constexpr std::uint64_t count_bits(std::span<const std::uint64_t> bitmap) noexcept {
  std::uint64_t count = 0;
  for (const std::uint64_t word : bitmap) count += static_cast<std::uint64_t>(std::popcount(word));
  return count;
}

/// Counts the set bits in [first, last).
constexpr std::uint64_t count_bits(std::span<const std::uint64_t> bitmap, std::uint64_t first,
                                   std::uint64_t last) noexcept {
  if (first >= last) return 0;
  const std::uint64_t head = first / 64, tail = (last - 1) / 64;
  const std::uint64_t from = ~low_bits(first % 64), upto = low_bits((last - 1) % 64 + 1);
  if (head == tail) return static_cast<std::uint64_t>(std::popcount(bitmap[head] & from & upto));
  return static_cast<std::uint64_t>(std::popcount(bitmap[head] & from) + std::popcount(bitmap[tail] & upto)) +
         count_bits(bitmap.subspan(head + 1, tail - head - 1));
}

namespace detail {

/// The first bit in [from, limit) that differs from the bits of `flip`, which are all zeros or all ones; else
/// `limit`.
constexpr std::uint64_t next_different(std::span<const std::uint64_t> bitmap, std::uint64_t from,
                                       std::uint64_t limit, std::uint64_t flip) noexcept {
  if (from >= limit) return limit;
  std::uint64_t word = from / 64;
  std::uint64_t bits = (bitmap[word] ^ flip) & ~low_bits(from % 64);
  const std::uint64_t words = words_for(limit);
  while (bits == 0) {
    if (++word == words) return limit;
    bits = bitmap[word] ^ flip;
  }
  return std::min(limit, word * 64 + static_cast<std::uint64_t>(std::countr_zero(bits)));
}

}  // namespace detail

/// The first set bit in [from, limit), or `limit` if there is none. Bits from `limit` up are not looked at.
constexpr std::uint64_t next_set(std::span<const std::uint64_t> bitmap, std::uint64_t from,
                                 std::uint64_t limit) noexcept {
  return detail::next_different(bitmap, from, limit, 0);
}

/// The first clear bit in [from, limit), or `limit` if there is none. Bits from `limit` up are not looked at.
constexpr std::uint64_t next_clear(std::span<const std::uint64_t> bitmap, std::uint64_t from,
                                   std::uint64_t limit) noexcept {
  return detail::next_different(bitmap, from, limit, ~std::uint64_t{0});
}

/// Returns word `word` of a bitmap in which bit b is set if b and b + 1 differ, so that a run of set or clear
/// bits ends at b. Behind the last word all bits count as clear.
constexpr std::uint64_t ends_of_runs(std::span<const std::uint64_t> bitmap, std::size_t word) noexcept {
  const std::uint64_t next = word + 1 < bitmap.size() ? bitmap[word + 1] : 0;
  return bitmap[word] ^ (bitmap[word] >> 1 | next << 63);
}

/// Sets the first `bits` bits of the span and clears all others, so that bitmaps can be compared word by
/// word.
constexpr void fill_ones(std::span<std::uint64_t> bitmap, std::uint64_t bits) noexcept {
  for (std::uint64_t word = 0; word < bitmap.size(); ++word) {
    const std::uint64_t before = word * 64;
    bitmap[word] = before < bits ? low_bits(bits - before) : 0;
  }
}

/// Returns true if all of the first `bits` bits are set.
constexpr bool all_set(std::span<const std::uint64_t> bitmap, std::uint64_t bits) noexcept {
  for (std::uint64_t word = 0; word * 64 < bits; ++word) {
    if ((~bitmap[word] & low_bits(bits - word * 64)) != 0) return false;
  }
  return true;
}

/// Counts the runs of set bits within the first `bits` bits. A gather list needs one entry for each run.
constexpr std::uint64_t count_runs(std::span<const std::uint64_t> bitmap, std::uint64_t bits) noexcept {
  std::uint64_t runs = 0, before = 0;  // before: the last bit of the previous word
  for (std::uint64_t word = 0; word < words_for(bits); ++word) {
    const std::uint64_t set = bitmap[word] & low_bits(bits - word * 64);
    runs += static_cast<std::uint64_t>(std::popcount(set & ~(set << 1 | before)));
    before = set >> 63;
  }
  return runs;
}

}  // namespace nzcl
