#include "runtime/compress/bin_code.h"

#include <algorithm>
#include <cmath>

#include "runtime/base/bitmap.h"

namespace nzcl::compress {
namespace {

/// The size of the entries, which depends on the longest bin.
struct EntryFormat {
  std::size_t bytes;       // of one entry
  std::uint32_t no_place;  // the place with all bits set, which stands for empty bins
};

EntryFormat format_of(std::span<const std::uint32_t> ends) {
  std::uint32_t begin = 0, longest = 0;
  for (const std::uint32_t end : ends) {
    longest = std::max(longest, end - begin);
    begin = end;
  }
  return longest < 64 ? EntryFormat{1, 63} : EntryFormat{2, 16383};
}

/// Whether a bit in [first, last) is set. The range must not be empty.
bool any_bit(std::span<const std::uint64_t> bitmap, std::uint32_t first, std::uint32_t last) {
  const std::uint32_t head = first / 64, tail = (last - 1) / 64;
  const std::uint64_t from = ~low_bits(first % 64), upto = low_bits((last - 1) % 64 + 1);
  if (head == tail) return (bitmap[head] & from & upto) != 0;
  std::uint64_t any = (bitmap[head] & from) | (bitmap[tail] & upto);
  for (std::uint32_t word = head + 1; word < tail; ++word) any |= bitmap[word];
  return any != 0;
}

/// Calls place(place, i, is_last) for value i, with its place in its bin and whether it is the bin's last
/// value, and skip(bins) for one to four empty bins before it.
template <class Place, class Skip>
void walk(std::span<const std::uint32_t> ends, std::span<const std::uint16_t> offsets, Place place,
          Skip skip) {
  std::size_t bin = 0;
  std::uint32_t begin = 0;
  for (std::size_t i = 0; i < offsets.size();) {
    std::size_t empty = 0;
    while (ends[bin] <= offsets[i]) begin = ends[bin++], ++empty;
    for (; empty > 0; empty -= std::min<std::size_t>(empty, 4)) skip(std::min<std::size_t>(empty, 4));
    for (bool last = false; !last; ++i) {
      last = i + 1 == offsets.size() || offsets[i + 1] >= ends[bin];
      place(offsets[i] - begin, i, last);
    }
    begin = ends[bin++];
  }
}

}  // namespace

std::size_t bin_code_bytes(std::span<const std::uint32_t> ends, std::span<const std::uint64_t> bitmap,
                           std::size_t count) noexcept {
  std::size_t skips = 0, empty = 0;
  std::uint32_t begin = 0;
  for (const std::uint32_t end : ends) {
    // Whether a bin is empty cannot be predicted, so there are no branches on it.
    const bool any = any_bit(bitmap, begin, end);
    skips += any ? (empty + 3) / 4 : 0;
    empty = any ? 0 : empty + 1;
    begin = end;
  }
  return (count + skips) * format_of(ends).bytes;
}

std::size_t encode_bins(std::span<const std::uint32_t> ends, const SignedOffsets& entries,
                        std::span<std::byte> bytes) noexcept {
  const EntryFormat format = format_of(ends);
  std::size_t at = 0;
  bool room = true;
  const auto put = [&](std::uint32_t entry) {
    room = room && at + format.bytes <= bytes.size();
    if (!room) return;
    for (std::size_t i = 0; i < format.bytes; ++i)
      bytes[at++] = static_cast<std::byte>(entry >> (8 * i) & 0xff);
  };
  walk(
      ends, entries.offsets,
      [&](std::uint32_t place, std::size_t i, bool last) {
        put(place << 2 | (last ? 2u : 0u) | (std::signbit(entries.values[i]) ? 1u : 0u));
      },
      [&](std::size_t bins) { put(format.no_place << 2 | static_cast<std::uint32_t>(bins - 1)); });
  return room ? at : 0;
}

bool decode_bins(std::span<const std::uint32_t> ends, std::span<const std::byte> bytes, float scale,
                 std::span<std::uint16_t> offsets, std::span<float> values) noexcept {
  const EntryFormat format = format_of(ends);
  if (bytes.size() % format.bytes != 0) return false;
  std::size_t bin = 0, count = 0;
  std::uint32_t begin = 0;
  std::int64_t before = -1;   // the place of the entry before in the same bin; -1 at the bin's begin
  std::uint32_t skipped = 0;  // how many empty bins the entry before stood for
  bool open = false;          // whether the bin of the entry before goes on
  for (std::size_t at = 0; at < bytes.size(); at += format.bytes) {
    std::uint32_t entry = 0;
    for (std::size_t i = 0; i < format.bytes; ++i)
      entry |= std::to_integer<std::uint32_t>(bytes[at + i]) << (8 * i);
    const std::uint32_t place = entry >> 2;
    if (place == format.no_place) {
      const std::uint32_t bins = (entry & 3) + 1;
      // Every slice has exactly one code: an entry for fewer than four empty bins may not be followed by
      // another entry for empty bins.
      if (open || (skipped != 0 && skipped != 4) || ends.size() - bin <= bins) return false;
      bin += bins, begin = ends[bin - 1], skipped = bins;
      continue;
    }
    if (bin == ends.size() || place >= ends[bin] - begin || std::int64_t{place} <= before ||
        count == offsets.size())
      return false;
    offsets[count] = static_cast<std::uint16_t>(begin + place);
    values[count++] = (entry & 1) != 0 ? -scale : scale;
    before = place, open = (entry & 2) == 0, skipped = 0;
    if (!open) begin = ends[bin++], before = -1;
  }
  return !open && skipped == 0 && count == offsets.size();
}

}  // namespace nzcl::compress
