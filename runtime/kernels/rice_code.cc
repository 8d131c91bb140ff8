// Index sets in Rice's code, bit by bit.
#include <bit>
#include <cassert>
#include <cstring>

#include "runtime/kernels/elements.h"
#include "runtime/kernels/index_codec.h"

namespace nzcl {
namespace {

/// The k of the code.
int shift_of(std::size_t elements, std::size_t count) {
  const std::size_t mean = count > 0 ? (elements - count) / count : 0;
  return mean > 0 ? static_cast<int>(std::bit_width(mean)) - 1 : 0;
}

constexpr std::uint64_t low_mask(int bits) { return (std::uint64_t{1} << bits) - 1; }

/// Calls each(gap) for every offset: how many elements are left out before it.
template <class Each>
void for_each_gap(std::span<const std::uint16_t> offsets, Each each) {
  std::uint32_t next = 0;
  for (const std::uint16_t offset : offsets) {
    each(offset - next);
    next = offset + 1u;
  }
}

class BitWriter {
 public:
  explicit BitWriter(std::byte* to) : to_(to) {}
  /// Appends the `n` lowest bits, at most 32; those above are 0.
  void put(std::uint64_t bits, int n) {
    held_ |= bits << count_;
    count_ += n;
    if (count_ < 32) return;
    const auto word = static_cast<std::uint32_t>(held_);
    std::memcpy(to_, &word, sizeof word);
    to_ += sizeof word;
    held_ >>= 32;
    count_ -= 32;
  }
  void put_zeros_and_one(std::uint32_t zeros) {
    for (; zeros >= 32; zeros -= 32) put(0, 32);
    put(std::uint64_t{1} << zeros, static_cast<int>(zeros) + 1);
  }
  /// Writes what is left, and returns where it ends.
  std::byte* finish() {
    for (; count_ > 0; count_ -= 8, held_ >>= 8) *to_++ = static_cast<std::byte>(held_ & 0xff);
    return to_;
  }

 private:
  std::byte* to_;
  std::uint64_t held_ = 0;
  int count_ = 0;  // of bits that are held: below 32
};

class BitReader {
 public:
  explicit BitReader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  /// Reads zeros and the one behind them. Returns false if the bytes end before a one.
  bool take_zeros(std::uint64_t& zeros) {
    zeros = 0;
    while (true) {
      const std::uint64_t window = look();
      if (window != 0) {
        const int found = std::countr_zero(window);
        zeros += static_cast<std::uint64_t>(found);
        at_ += static_cast<std::uint64_t>(found) + 1;
        return true;
      }
      zeros += kWindow, at_ += kWindow;
      if (at_ >= 8 * bytes_.size()) return false;
    }
  }
  /// Reads `n` bits, at most kWindow. What lies behind the last byte counts as zeros.
  std::uint64_t take(int n) {
    const std::uint64_t bits = look() & low_mask(n);
    at_ += static_cast<std::uint64_t>(n);
    return bits;
  }
  /// Whether exactly the bits of the last byte that have to be 0 are left.
  bool at_end() const {
    if ((at_ + 7) / 8 != bytes_.size()) return false;
    return at_ % 8 == 0 || std::to_integer<unsigned>(bytes_.back()) >> (at_ % 8) == 0;
  }

 private:
  /// The number of bits that can be looked at, wherever within a byte they begin.
  static constexpr int kWindow = 57;
  std::uint64_t look() const {
    const std::uint64_t byte = at_ / 8;
    std::uint64_t word = 0;
    if (byte + sizeof word <= bytes_.size()) {
      std::memcpy(&word, bytes_.data() + byte, sizeof word);
    } else if (byte < bytes_.size()) {
      std::memcpy(&word, bytes_.data() + byte, bytes_.size() - byte);
    }
    return word >> (at_ % 8) & low_mask(kWindow);
  }

  std::span<const std::byte> bytes_;
  std::uint64_t at_ = 0;  // in bits
};

}  // namespace

std::size_t rice_bytes(std::span<const std::uint16_t> offsets, std::size_t elements) noexcept {
  const int shift = shift_of(elements, offsets.size());
  if (offsets.empty()) return 0;
  // Each gap from the offset before it, so that compilers make vectors of it.
  std::uint32_t ones = offsets[0] >> shift;
  for (std::size_t i = 1; i < offsets.size(); ++i)
    ones += static_cast<std::uint16_t>(offsets[i] - offsets[i - 1] - 1) >> shift;
  const std::size_t bits = offsets.size() * (static_cast<std::size_t>(shift) + 1) + ones;
  return (bits + 7) / 8;
}

void encode_rice(std::span<const std::uint16_t> offsets, std::size_t elements,
                 std::span<std::byte> bytes) noexcept {
  const int shift = shift_of(elements, offsets.size());
  BitWriter writer(bytes.data());
  for_each_gap(offsets, [&](std::uint32_t gap) {
    writer.put_zeros_and_one(gap >> shift);
    writer.put(gap & low_mask(shift), shift);
  });
  [[maybe_unused]] const std::byte* const end = writer.finish();
  assert(end == bytes.data() + bytes.size());
}

bool decode_rice(std::span<const std::byte> bytes, std::size_t elements,
                 std::span<std::uint16_t> offsets) noexcept {
  assert(elements <= kMostSliceElements);
  if (offsets.size() > elements) return false;
  const int shift = shift_of(elements, offsets.size());
  BitReader reader(bytes);
  std::uint64_t next = 0;  // the first element that is not decided yet
  for (std::uint16_t& offset : offsets) {
    std::uint64_t zeros = 0;
    if (!reader.take_zeros(zeros)) return false;
    const std::uint64_t element = next + (zeros << shift | reader.take(shift));
    if (element >= elements) return false;
    offset = static_cast<std::uint16_t>(element);
    next = element + 1;
  }
  return reader.at_end();
}

}  // namespace nzcl
