// What the kernels for packed elements share on all instruction sets: reading and writing packed elements, 64
// at a time.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace nzcl {

inline constexpr std::size_t kWordElements = 64;  // elements that one word of a bitmap stands for

/// Row m says for each of 8 lanes which packed value it takes if the lanes in the bits of m are those that
/// have one. The entries of the others are arbitrary, but valid in a vector of as many lanes as m needs.
constexpr std::array<std::array<std::uint8_t, 8>, 256> make_expand_table() {
  std::array<std::array<std::uint8_t, 8>, 256> table{};
  for (unsigned mask = 0; mask < 256; ++mask) {
    for (unsigned lane = 0; lane < 8; ++lane)
      table[mask][lane] = static_cast<std::uint8_t>(std::popcount(mask & ((1u << lane) - 1)));
  }
  return table;
}
inline constexpr auto kExpandTable = make_expand_table();

/// Gives packed elements word by word. The last ones are read from a copy with zeros behind them, because
/// vectors read beyond the values that they need.
template <typename Element>
class PackedReader {
 public:
  PackedReader(const std::byte* values, std::size_t count)
      : at_(reinterpret_cast<const Element*>(values)), left_(count) {
    if (left_ < kWordElements) copy_last();
  }

  /// The next elements; kWordElements of them may be read, of which `used` are taken.
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

/// Takes packed elements word by word, and writes nothing beyond its capacity.
template <typename Element>
class PackedWriter {
 public:
  PackedWriter(std::byte* values, std::size_t capacity)
      : at_(reinterpret_cast<Element*>(values)), left_(capacity) {}

  /// write(to) writes `count` elements, and may write up to kWordElements. Returns false if `count` are too
  /// many.
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
