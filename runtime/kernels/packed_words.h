// What the kernels for packed elements share on all instruction sets: reading and writing packed elements, 64
// at a time.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace nzcl {

/// The number of elements that one word of a bitmap stands for.
inline constexpr std::size_t kWordElements = 64;

/// For each set of up to 8 lanes (one bit each), and each lane of a vector, which lane it takes its value
/// from.
using LaneTable = std::array<std::array<std::uint8_t, 8>, 256>;

/// For spreading packed values over the lanes of a set. The entries of the other lanes do not matter; they
/// too are numbers of lanes in the vector, so that they may be looked up.
constexpr LaneTable make_expand_table() {
  LaneTable table{};
  for (unsigned mask = 0; mask < 256; ++mask) {
    for (unsigned lane = 0; lane < 8; ++lane)
      table[mask][lane] = static_cast<std::uint8_t>(std::popcount(mask & ((1u << lane) - 1)));
  }
  return table;
}
inline constexpr LaneTable kExpandTable = make_expand_table();

/// For moving the lanes of a set together. What comes behind them does not matter.
constexpr LaneTable make_pack_table() {
  LaneTable table{};
  for (unsigned mask = 0; mask < 256; ++mask) {
    std::size_t packed = 0;
    for (unsigned lane = 0; lane < 8; ++lane) {
      if (mask >> lane & 1) table[mask][packed++] = static_cast<std::uint8_t>(lane);
    }
  }
  return table;
}
inline constexpr LaneTable kPackTable = make_pack_table();

/// Reads packed elements word by word. Vectors read beyond the values that they need, so the last elements
/// are read from a copy that has zeros behind them.
template <typename Element>
class PackedReader {
 public:
  PackedReader(const std::byte* values, std::size_t count)
      : at_(reinterpret_cast<const Element*>(values)), left_(count) {
    if (left_ < kWordElements) copy_last();
  }

  /// Returns where the next elements are, and moves on by `used` of them. The caller may read kWordElements.
  const Element* take(std::size_t used) {
    const Element* const word = at_;
    at_ += used;
    left_ -= used;
    if (left_ < kWordElements && !last_) copy_last();
    return word;
  }

 private:
  void copy_last() {
    if (left_ > 0) std::memcpy(copy_, at_, left_ * sizeof(Element));
    std::memset(copy_ + left_, 0, sizeof copy_ - left_ * sizeof(Element));
    at_ = copy_;
    last_ = true;
  }

  const Element* at_;
  std::size_t left_;
  bool last_ = false;
  Element copy_[2 * kWordElements];
};

/// Writes packed elements word by word, and nothing beyond its capacity.
template <typename Element>
class PackedWriter {
 public:
  PackedWriter(std::byte* values, std::size_t capacity)
      : at_(reinterpret_cast<Element*>(values)), left_(capacity) {}

  /// Calls write(to), which writes `count` elements and may write up to kWordElements. Returns false if the
  /// output has no room for `count` more.
  template <class Write>
  [[gnu::always_inline]] bool put(std::size_t count, Write write) {
    Element last[kWordElements];
    const bool room = left_ >= kWordElements;
    write(room ? at_ : last);
    if (!room) {
      if (count > left_) return false;
      if (count > 0) std::memcpy(at_, last, count * sizeof(Element));
    }
    at_ += count;
    left_ -= count;
    return true;
  }

 private:
  Element* at_;
  std::size_t left_;
};

}  // namespace nzcl
