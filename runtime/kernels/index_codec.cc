#include "runtime/kernels/index_codec.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "runtime/base/bitmap.h"
#include "runtime/kernels/elements.h"
#include "runtime/kernels/offsets.h"

namespace nzcl {
namespace {

/// The byte of the gaps code that stands for 255 elements which are left out, without one that is there
/// behind them.
constexpr std::uint8_t kSkip = 0xff;

/// How many offsets are coded or decoded at once, if no gap among them needs kSkip.
constexpr std::size_t kTogether = 8;

struct Run {
  std::uint16_t first, length_less_1;
};
static_assert(sizeof(Run) == 4);

/// Calls each(first, last) for every run of set bits [first, last].
template <class Each>
void for_each_run(std::span<const std::uint64_t> bitmap, std::size_t elements, Each each) {
  for (std::uint64_t at = next_set(bitmap, 0, elements); at < elements; at = next_set(bitmap, at, elements)) {
    const std::uint64_t end = next_clear(bitmap, at, elements);
    each(at, end - 1);
    at = end;
  }
}

/// Sets the bits [first, last].
void set_range(std::span<std::uint64_t> bitmap, std::uint64_t first, std::uint64_t last) {
  const std::uint64_t from = ~low_bits(first % 64), upto = low_bits(last % 64 + 1);
  if (first / 64 == last / 64) {
    bitmap[first / 64] |= from & upto;
    return;
  }
  bitmap[first / 64] |= from;
  for (std::uint64_t word = first / 64 + 1; word < last / 64; ++word) bitmap[word] = ~std::uint64_t{0};
  bitmap[last / 64] |= upto;
}

/// Returns true if any of the eight bytes is kSkip, which means that a byte of the complement is zero.
bool any_skip(std::uint64_t bytes) {
  constexpr std::uint64_t kOnes = 0x0101010101010101;
  const std::uint64_t zeros = ~bytes;
  return ((zeros - kOnes) & ~zeros & kOnes << 7) != 0;
}

/// Writes the gaps of kTogether offsets as one byte each. `before` is the offset before the first of them.
/// Returns false if one of the gaps needs kSkip; the bytes are then arbitrary.
bool encode_together(const std::uint16_t* offsets, std::uint32_t before, std::uint8_t* to) {
  std::uint32_t high = 0;
  for (std::size_t i = 0; i < kTogether; ++i) {
    const std::uint32_t gap = offsets[i] - (i == 0 ? before : offsets[i - 1]) - 1;
    to[i] = static_cast<std::uint8_t>(gap);
    high |= gap + 1;  // 256 or more if the gap is 255 or more
  }
  return high < 256;
}

}  // namespace

std::size_t gaps_bytes(std::span<const std::uint16_t> offsets) noexcept {
  std::size_t bytes = offsets.size();
  std::uint32_t next = 0;
  for (const std::uint16_t offset : offsets) {
    bytes += (offset - next) / kSkip;
    next = offset + 1u;
  }
  return bytes;
}

std::size_t runs_bytes(std::span<const std::uint64_t> bitmap) noexcept {
  return set_runs(bitmap) * sizeof(Run);
}

void encode_bitmap(std::span<const std::uint64_t> bitmap, std::span<std::byte> bytes) noexcept {
  assert(bytes.size() == bitmap.size_bytes());
  if (!bytes.empty()) std::memcpy(bytes.data(), bitmap.data(), bytes.size());
}

void encode_offsets(std::span<const std::uint16_t> offsets, std::span<std::byte> bytes) noexcept {
  assert(bytes.size() == offsets.size_bytes());
  if (!bytes.empty()) std::memcpy(bytes.data(), offsets.data(), bytes.size());
}

void encode_gaps(std::span<const std::uint16_t> offsets, std::span<std::byte> bytes) noexcept {
  auto* to = reinterpret_cast<std::uint8_t*>(bytes.data());
  [[maybe_unused]] const auto* const end = to + bytes.size();
  std::uint32_t before = ~std::uint32_t{0};  // the offset before the first one is -1
  for (std::size_t i = 0; i < offsets.size();) {
    if (offsets.size() - i >= kTogether && encode_together(&offsets[i], before, to)) {
      to += kTogether, i += kTogether;
    } else {
      // The attempt has written a byte for each of these offsets. So exactly these are coded one by one, over
      // what it wrote.
      for (const std::size_t stop = std::min(offsets.size(), i + kTogether); i < stop; ++i) {
        std::uint32_t gap = offsets[i] - (i == 0 ? before : offsets[i - 1]) - 1;
        for (; gap >= kSkip; gap -= kSkip) *to++ = kSkip;
        *to++ = static_cast<std::uint8_t>(gap);
      }
    }
    before = offsets[i - 1];
  }
  assert(to == end);
}

void encode_runs(std::span<const std::uint64_t> bitmap, std::size_t elements,
                 std::span<std::byte> bytes) noexcept {
  std::byte* to = bytes.data();
  for_each_run(bitmap, elements, [&](std::uint64_t first, std::uint64_t last) {
    const Run run{static_cast<std::uint16_t>(first), static_cast<std::uint16_t>(last - first)};
    std::memcpy(to, &run, sizeof run);
    to += sizeof run;
  });
  assert(to == bytes.data() + bytes.size());
}

bool decode_bitmap(std::span<const std::byte> bytes, std::size_t elements, std::size_t count,
                   std::span<std::uint64_t> bitmap) noexcept {
  assert(elements <= kMostSliceElements && bitmap.size() == words_for(elements));
  if (bytes.size() != bitmap.size_bytes()) return false;
  if (bitmap.empty()) return count == 0;
  std::memcpy(bitmap.data(), bytes.data(), bytes.size());
  return (bitmap.back() & ~low_bits(elements - 64 * (bitmap.size() - 1))) == 0 && set_size(bitmap) == count;
}

bool decode_offsets(std::span<const std::byte> bytes, std::size_t elements,
                    std::span<std::uint16_t> offsets) noexcept {
  assert(elements <= kMostSliceElements);
  if (bytes.size() != offsets.size_bytes()) return false;
  if (!bytes.empty()) std::memcpy(offsets.data(), bytes.data(), bytes.size());
  return are_offsets(offsets, elements);
}

bool decode_gaps(std::span<const std::byte> bytes, std::size_t elements,
                 std::span<std::uint16_t> offsets) noexcept {
  assert(elements <= kMostSliceElements);
  std::uint64_t next = 0;  // the first element that is not decided yet
  std::size_t at = 0, found = 0;
  bool skipped = false;  // the last byte was kSkip, which must not be the end
  while (at < bytes.size()) {
    if (bytes.size() - at >= kTogether && offsets.size() - found >= kTogether) {
      std::uint64_t gaps;
      std::memcpy(&gaps, &bytes[at], sizeof gaps);
      if (!any_skip(gaps)) {
        for (std::size_t i = 0; i < kTogether; ++i, gaps >>= 8) {
          next += gaps & 0xff;
          offsets[found + i] = static_cast<std::uint16_t>(next++);
        }
        at += kTogether, found += kTogether, skipped = false;
        if (next > elements) return false;
        continue;
      }
    }
    const auto gap = std::to_integer<std::uint8_t>(bytes[at++]);
    next += gap;
    skipped = gap == kSkip;
    if (skipped) continue;
    if (next >= elements || found == offsets.size()) return false;
    offsets[found++] = static_cast<std::uint16_t>(next++);
  }
  return found == offsets.size() && !skipped;
}

bool decode_runs(std::span<const std::byte> bytes, std::size_t elements, std::size_t count,
                 std::span<std::uint64_t> bitmap) noexcept {
  assert(elements <= kMostSliceElements && bitmap.size() == words_for(elements));
  if (bytes.size() % sizeof(Run) != 0) return false;
  std::ranges::fill(bitmap, 0);
  std::uint64_t next = 0, found = 0;  // where the next run may begin
  for (; !bytes.empty(); bytes = bytes.subspan(sizeof(Run))) {
    Run run;
    std::memcpy(&run, bytes.data(), sizeof run);
    const std::uint64_t first = run.first, last = first + run.length_less_1;
    if (first < next || last >= elements) return false;
    set_range(bitmap, first, last);
    found += last - first + 1;
    next = last + 2;  // a run that begins directly behind this one would have been coded as a part of it
  }
  return found == count;
}

}  // namespace nzcl
