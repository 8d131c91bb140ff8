#include "runtime/kernels/scan.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

// Highway compiles the part above HWY_ONCE once per instruction set; the order of these three lines matters.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/kernels/scan.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#ifndef NZCL_SCAN_COMMON
#define NZCL_SCAN_COMMON
namespace nzcl {
namespace {

/// One cache line. Large blocks are read in this unit. Blocks of this size or more are tested one by one,
/// while of smaller blocks many are compared by one instruction.
constexpr std::uint64_t kLine = 64;

/// Lines that are read between two tests for non-zero: enough that the tests cost little beside the loads,
/// and few enough that the scan leaves a non-zero block soon.
constexpr std::uint64_t kLinesPerTest = 8;

/// Blocks below this size are first tested in groups of about this many bytes, because most groups are all
/// zero.
constexpr std::uint64_t kTogether = 1024;

/// The least size of a part when a buffer is read as several streams, because shorter parts gain nothing.
constexpr std::uint64_t kLeastPart = 16 << 10;

/// Appends bits to a bitmap, word by word.
class BitWriter {
 public:
  explicit BitWriter(std::uint64_t* words) : next_(words) {}

  /// Precondition: 1 <= count <= 64, and no bit of `bits` from bit `count` on is set.
  void push(std::uint64_t bits, std::uint64_t count) {
    word_ |= bits << used_;
    if (used_ + count < 64) {
      used_ += count;
      return;
    }
    *next_++ = word_;
    word_ = used_ == 0 ? 0 : bits >> (64 - used_);
    used_ = used_ + count - 64;
  }

  /// Skips whole words. Precondition: the number of bits pushed so far is a multiple of 64.
  void skip_words(std::uint64_t count) { next_ += count; }

  void finish() {
    if (used_ > 0) *next_ = word_;
  }

 private:
  std::uint64_t* next_;
  std::uint64_t word_ = 0;
  std::uint64_t used_ = 0;  // bits in word_, below 64
};

/// Whether any byte is not zero, for pieces that are too short for vectors.
bool any_byte(const std::byte* p, std::uint64_t bytes) {
  std::uint64_t all = 0, word = 0;
  for (; bytes >= sizeof(word); p += sizeof(word), bytes -= sizeof(word)) {
    std::memcpy(&word, p, sizeof(word));
    all |= word;
  }
  for (; bytes > 0; ++p, --bytes) all |= std::to_integer<std::uint64_t>(*p);
  return all != 0;
}

}  // namespace
}  // namespace nzcl
#endif  // NZCL_SCAN_COMMON

HWY_BEFORE_NAMESPACE();
namespace nzcl::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// A vector type that is no wider than a cache line, so that a line is a whole number of vectors.
using Words = hn::CappedTag<std::uint64_t, kLine / 8>;

template <class D>
HWY_INLINE hn::Vec<D> load(D d, const std::byte* p) {
#if HWY_TARGET == HWY_SCALAR
  hn::TFromD<D> lane;
  std::memcpy(&lane, p, sizeof(lane));
  return hn::Set(d, lane);
#else
  // Loaded as bytes, because p need not be aligned to the lane.
  return hn::BitCast(d,
                     hn::LoadU(hn::Repartition<std::uint8_t, D>(), reinterpret_cast<const std::uint8_t*>(p)));
#endif
}

template <class D>
HWY_INLINE bool any(D d, hn::Vec<D> v) {
  return !hn::AllTrue(d, hn::Eq(v, hn::Zero(d)));
}

/// ORs one line into `all`.
HWY_INLINE hn::Vec<Words> or_line(hn::Vec<Words> all, const std::byte* p) {
  const Words d;
  for (std::size_t at = 0; at < kLine; at += hn::Lanes(d) * 8) all = hn::Or(all, load(d, p + at));
  return all;
}

/// Whether any byte of the block is not zero. Precondition: bytes >= kLine.
HWY_INLINE bool any_in_block(const std::byte* p, std::uint64_t bytes) {
  const Words d;
  // Most blocks that are not zero have a non-zero byte in their first line, since a gradient's row is dense
  // where it is touched at all. Then the rest need not be read.
  if (any(d, or_line(hn::Zero(d), p))) return true;
  // The loop begins at the next boundary of a cache line, because a load across two lines costs as much as
  // two.
  std::uint64_t at = kLine - reinterpret_cast<std::uintptr_t>(p) % kLine;
  for (; at + kLinesPerTest * kLine <= bytes; at += kLinesPerTest * kLine) {
    auto even = hn::Zero(d), odd = hn::Zero(d);
    for (std::uint64_t line = 0; line < kLinesPerTest; line += 2) {
      even = or_line(even, p + at + line * kLine);
      odd = or_line(odd, p + at + (line + 1) * kLine);
    }
    if (any(d, hn::Or(even, odd))) return true;
  }
  auto rest = hn::Zero(d);
  for (; at + kLine <= bytes; at += kLine) rest = or_line(rest, p + at);
  // The last line overlaps what was read already, so that no scalar loop is needed for the tail.
  if (at < bytes) rest = or_line(rest, p + bytes - kLine);
  return any(d, rest);
}

/// Bit i of the result says that lane i of the 64 lanes of type T at p is not zero.
template <typename T>
HWY_INLINE std::uint64_t lane_bits(const std::byte* p) {
  const hn::CappedTag<T, 64> d;
  auto all = hn::Zero(d);
  for (std::size_t lane = 0; lane < 64; lane += hn::Lanes(d))
    all = hn::Or(all, load(d, p + lane * sizeof(T)));
  if (!any(d, all)) return 0;
  std::uint64_t bits = 0;
  for (std::size_t lane = 0; lane < 64; lane += hn::Lanes(d)) {
    std::uint8_t part[8] = {};
    std::uint64_t word;
    hn::StoreMaskBits(d, hn::Ne(load(d, p + lane * sizeof(T)), hn::Zero(d)), part);
    std::memcpy(&word, part, sizeof(word));
    bits |= word << lane;
  }
  return bits;
}

/// Scans blocks of `lanes` lanes of type T, 1 <= lanes < 64: compares 64 lanes at a time and then folds the
/// bits of each block into one. Stops where 64 lanes would reach beyond the data. Returns the number of
/// blocks that were scanned.
template <typename T>
HWY_INLINE std::uint64_t scan_lanes(const std::byte* data, std::uint64_t bytes, std::uint64_t lanes,
                                    BitWriter& out) {
  const std::uint64_t blocks = 64 / lanes;  // per step
  const std::uint64_t step = blocks * lanes * sizeof(T);
  const std::uint64_t block_mask = ~std::uint64_t{0} >> (64 - lanes);
  std::uint64_t done = 0;
  for (std::uint64_t at = 0; at + 64 * sizeof(T) <= bytes; at += step, done += blocks) {
    std::uint64_t bits = lane_bits<T>(data + at);
    if (lanes > 1 && bits != 0) {
      std::uint64_t folded = 0;
      for (std::uint64_t block = 0; block < blocks; ++block, bits >>= lanes) {
        folded |= std::uint64_t{(bits & block_mask) != 0} << block;
      }
      bits = folded;
    }
    out.push(bits, blocks);
  }
  return done;
}

std::uint64_t scan_small(const std::byte* data, std::uint64_t bytes, std::uint64_t block_bytes,
                         BitWriter& out) {
  // Takes the widest lane that divides the block.
  switch (std::countr_zero(block_bytes)) {
    case 0:
      return scan_lanes<std::uint8_t>(data, bytes, block_bytes, out);
    case 1:
      return scan_lanes<std::uint16_t>(data, bytes, block_bytes / 2, out);
    case 2:
      return scan_lanes<std::uint32_t>(data, bytes, block_bytes / 4, out);
    default:
      return scan_lanes<std::uint64_t>(data, bytes, block_bytes / 8, out);
  }
}

/// Scans `count` blocks of kLine bytes or more. First they are tested together, because most groups are all
/// zero.
HWY_INLINE void scan_group(const std::byte* p, std::uint64_t count, std::uint64_t block_bytes,
                           BitWriter& out) {
  if (!any_in_block(p, count * block_bytes)) {
    out.push(0, count);
  } else if (count == 1) {
    out.push(1, 1);
  } else {
    for (std::uint64_t i = 0; i < count; ++i) out.push(any_in_block(p + i * block_bytes, block_bytes), 1);
  }
}

/// Scans blocks of kLine bytes or more. Stops before a partial block. Returns the number of blocks that were
/// scanned.
std::uint64_t scan_large(const std::byte* data, std::uint64_t bytes, std::uint64_t block_bytes,
                         std::uint64_t streams, BitWriter& out) {
  const std::uint64_t group = block_bytes < kTogether ? kTogether / block_bytes : 1;
  const std::uint64_t blocks = bytes / block_bytes;
  std::uint64_t done = 0;
  const std::uint64_t part = blocks / streams / 64 * 64;  // whole words of the bitmap
  if (streams > 1 && part * block_bytes >= kLeastPart) {
    static_assert(kMaxScanStreams == 4);
    std::array<BitWriter, kMaxScanStreams> outs{out, out, out, out};
    for (std::uint64_t s = 0; s < streams; ++s) outs[s].skip_words(s * part / 64);
    for (std::uint64_t at = 0; at < part; at += group) {
      const std::uint64_t count = std::min(group, part - at);
      for (std::uint64_t s = 0; s < streams; ++s)
        scan_group(data + (s * part + at) * block_bytes, count, block_bytes, outs[s]);
    }
    done = streams * part;
    out.skip_words(done / 64);
  }
  for (; done < blocks; done += std::min(group, blocks - done))
    scan_group(data + done * block_bytes, std::min(group, blocks - done), block_bytes, out);
  return done;
}

void scan(const std::byte* data, std::uint64_t bytes, std::uint64_t block_bytes, std::uint64_t* bitmap,
          std::uint64_t streams) {
  BitWriter out(bitmap);
  const std::uint64_t whole = bytes < block_bytes   ? 0  // no division, which a small tensor would notice
                              : block_bytes < kLine ? scan_small(data, bytes, block_bytes, out)
                                                    : scan_large(data, bytes, block_bytes, streams, out);
  std::uint64_t at = whole * block_bytes;
  while (at < bytes) {  // small blocks near the end, and a partial one
    const std::uint64_t size = std::min(block_bytes, bytes - at);
    out.push(size < kLine ? any_byte(data + at, size) : any_in_block(data + at, size), 1);
    at += size;
  }
  out.finish();
}

}  // namespace nzcl::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nzcl {

HWY_EXPORT(scan);

void scan_blocks(const std::byte* data, std::uint64_t bytes, std::uint64_t block_bytes,
                 std::span<std::uint64_t> bitmap, int streams) noexcept {
  HWY_DYNAMIC_DISPATCH(scan)(data, bytes, block_bytes, bitmap.data(), static_cast<std::uint64_t>(streams));
}

}  // namespace nzcl
#endif  // HWY_ONCE
