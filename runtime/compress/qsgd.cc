#include "runtime/compress/qsgd.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>
#include <limits>

#include "runtime/base/cold_memory.h"

// Highway compiles the part above HWY_ONCE once per instruction set; the order of these lines matters.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/compress/qsgd.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "runtime/compress/random-inl.h"

HWY_BEFORE_NAMESPACE();
namespace nzcl::HWY_NAMESPACE {

using QsgdFloats = hn::CappedTag<float, 16>;
using QsgdSingle = hn::CappedTag<float, 1>;

/// Calls each(d, i) for vectors of the elements from i on. Elements at the end that fill no vector come one
/// at a time, with a tag for a single element.
template <class Each>
HWY_INLINE void each_vector(std::size_t count, Each each) {
  const QsgdFloats d;
  std::size_t i = 0;
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) each(d, i);
  for (; i < count; ++i) each(QsgdSingle(), i);
}

/// The greatest magnitude, or NaN if a value is not finite.
float bucket_scale(const float* values, std::size_t count) {
  const hn::CappedTag<std::int32_t, 16> d;
  const auto* const ints = reinterpret_cast<const std::int32_t*>(values);
  const auto positive = hn::Set(d, 0x7fffffff);
  auto most = hn::Zero(d);
  std::size_t i = 0;
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d))
    most = hn::Max(most, hn::And(hn::LoadU(d, ints + i), positive));
  std::int32_t bits = hn::GetLane(hn::MaxOfLanes(d, most));
  for (; i < count; ++i) {
    std::int32_t one;
    std::memcpy(&one, values + i, sizeof one);
    bits = std::max(bits, one & 0x7fffffff);
  }
  return bits >= 0x7f800000 ? std::numeric_limits<float>::quiet_NaN() : std::bit_cast<float>(bits);
}

/// The codes of one bucket, a byte each. `first` is the number of its first value.
void bucket_codes(const float* values, std::size_t count, float scale, int levels, std::uint64_t key,
                  std::uint32_t first, std::uint8_t* codes) {
  if (!(scale > 0)) {
    std::memset(codes, levels, count);
    return;
  }
  each_vector(count, [&](auto d, std::size_t i) HWY_ATTR {
    using D = decltype(d);
    const hn::RebindToUnsigned<D> du;
    const hn::RebindToSigned<D> di;
    const auto v = hn::LoadU(d, values + i);
    // The quotient is at most 1, so nothing overflows.
    const auto level =
        hn::Mul(hn::Div(hn::Abs(v), hn::Set(d, scale)), hn::Set(d, static_cast<float>(levels)));
    const auto below = hn::ConvertTo(di, level);  // towards zero
    const auto fraction = hn::Sub(level, hn::ConvertTo(d, below));
    const auto hash = hash_lanes(du, key, numbers_from(du, first + static_cast<std::uint32_t>(i)));
    // 24 random bits as a fraction, which a float holds exactly.
    const auto drawn =
        hn::Mul(hn::ConvertTo(d, hn::BitCast(di, hn::ShiftRight<8>(hash))), hn::Set(d, 0x1p-24f));
    const auto up = hn::RebindMask(di, hn::Lt(drawn, fraction));
    const auto magnitude = hn::Add(below, hn::IfThenElseZero(up, hn::Set(di, 1)));
    const auto negative = hn::RebindMask(di, hn::Lt(v, hn::Zero(d)));
    const auto signed_level = hn::IfThenElse(negative, hn::Neg(magnitude), magnitude);
    const auto code = hn::Add(signed_level, hn::Set(di, levels));
    const hn::Rebind<std::uint8_t, decltype(di)> d8;
    hn::StoreU(hn::DemoteTo(d8, code), d8, codes + i);
  });
}

/// The codes of values of one bucket that were decoded. A value that is no multiple of the scale gets any
/// code.
void bucket_recode(const float* values, std::size_t count, float scale, int levels, std::uint8_t* codes) {
  if (!(scale > 0)) {
    std::memset(codes, levels, count);
    return;
  }
  each_vector(count, [&](auto d, std::size_t i) HWY_ATTR {
    using D = decltype(d);
    const hn::RebindToSigned<D> di;
    const hn::Rebind<std::uint8_t, decltype(di)> d8;
    const auto share = hn::Div(hn::LoadU(d, values + i), hn::Set(d, scale));
    const auto level = hn::NearestInt(hn::Mul(share, hn::Set(d, static_cast<float>(levels))));
    const auto limited = hn::Min(hn::Max(level, hn::Set(di, -levels)), hn::Set(di, levels));
    hn::StoreU(hn::DemoteTo(d8, hn::Add(limited, hn::Set(di, levels))), d8, codes + i);
  });
}

/// The values of one bucket. Returns the greatest code.
std::uint8_t bucket_values(const std::uint8_t* codes, std::size_t count, float scale, int levels,
                           float* values) {
  std::uint8_t most = 0;
  for (std::size_t i = 0; i < count; ++i) most = std::max(most, codes[i]);
  each_vector(count, [&](auto d, std::size_t i) HWY_ATTR {
    using D = decltype(d);
    const hn::RebindToSigned<D> di;
    const hn::Rebind<std::uint8_t, decltype(di)> d8;
    const auto level = hn::Sub(hn::PromoteTo(di, hn::LoadU(d8, codes + i)), hn::Set(di, levels));
    const auto share = hn::Div(hn::ConvertTo(d, level), hn::Set(d, static_cast<float>(levels)));
    auto v = hn::Mul(share, hn::Set(d, scale));
    v = hn::IfThenElse(hn::IsNaN(v), hn::Set(d, std::numeric_limits<float>::quiet_NaN()), v);
    hn::StoreU(v, d, values + i);
  });
  return most;
}

}  // namespace nzcl::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nzcl {
HWY_EXPORT(bucket_scale);
HWY_EXPORT(bucket_codes);
HWY_EXPORT(bucket_recode);
HWY_EXPORT(bucket_values);
}  // namespace nzcl

namespace nzcl::compress {
namespace {

/// The kernels write and read one byte for each code, and these bytes lie in a buffer on the stack. This many
/// codes at a time are moved between the buffer and the packed form. It is a multiple of 8, so that pieces
/// end at whole bytes.
constexpr std::size_t kPiece = 512;

constexpr int levels_of(const QsgdFormat& format) { return (1 << (format.bits - 1)) - 1; }

/// Packs `count` codes of `bits` bits each. The first one begins at the first bit of `to`.
void pack_codes(const std::uint8_t* codes, std::size_t count, int bits, std::byte* to) {
  const std::size_t per_byte = 8 / static_cast<std::size_t>(bits);
  std::size_t i = 0;
  for (; i + per_byte <= count; i += per_byte) {
    unsigned byte = 0;
    for (std::size_t k = 0; k < per_byte; ++k)
      byte |= unsigned{codes[i + k]} << (k * static_cast<std::size_t>(bits));
    *to++ = static_cast<std::byte>(byte);
  }
  if (i == count) return;
  unsigned byte = 0;
  for (std::size_t k = 0; i + k < count; ++k)
    byte |= unsigned{codes[i + k]} << (k * static_cast<std::size_t>(bits));
  *to = static_cast<std::byte>(byte);
}

void unpack_codes(const std::byte* from, std::size_t count, int bits, std::uint8_t* codes) {
  const std::size_t per_byte = 8 / static_cast<std::size_t>(bits);
  const unsigned mask = (1u << bits) - 1;
  for (std::size_t i = 0; i < count; ++i)
    codes[i] = static_cast<std::uint8_t>(std::to_integer<unsigned>(from[i / per_byte]) >>
                                             (i % per_byte * static_cast<std::size_t>(bits)) &
                                         mask);
}

/// Cuts the values into pieces of at most kPiece values that each lie in one bucket, and calls piece(begin,
/// end, bucket) for each.
template <class Piece>
void for_each_piece(const QsgdFormat& format, std::size_t count, Piece piece) {
  for (std::size_t begin = 0; begin < count;) {
    const std::size_t bucket = (format.skipped + begin) / format.bucket;
    const std::size_t end = std::min({count, (bucket + 1) * format.bucket - format.skipped, begin + kPiece});
    piece(begin, end, bucket);
    begin = end;
  }
}

/// Packs codes that come a piece at a time, and holds back those that do not fill a byte yet.
class CodePacker {
 public:
  CodePacker(int bits, std::byte* to) : bits_(bits), per_byte_(8 / static_cast<std::size_t>(bits)), to_(to) {}
  /// Where the next codes belong: at most kPiece, one in each byte.
  std::uint8_t* room() { return codes_ + held_; }
  /// Takes `count` codes that were written there.
  void add(std::size_t count) {
    held_ += count;
    const std::size_t whole = held_ / per_byte_ * per_byte_;
    pack_codes(codes_, whole, bits_, to_);
    to_ += whole / per_byte_;
    std::memmove(codes_, codes_ + whole, held_ - whole);
    held_ -= whole;
  }
  /// Packs what is held back.
  void finish() { pack_codes(codes_, held_, bits_, to_); }

 private:
  const int bits_;
  const std::size_t per_byte_;
  std::byte* to_;
  std::uint8_t codes_[kPiece + 8];
  std::size_t held_ = 0;
};

}  // namespace

void qsgd_encode(const QsgdFormat& format, std::span<const float> values, std::uint64_t key,
                 std::span<std::byte> bytes) noexcept {
  assert(bytes.size() == qsgd_bytes(format, values.size()));
  const std::size_t buckets = qsgd_buckets(format, values.size());
  CodePacker packer(format.bits, bytes.data() + 4 * buckets);
  float scale = 0;
  std::size_t measured = buckets;  // the bucket that `scale` is of
  for_each_piece(format, values.size(), [&](std::size_t begin, std::size_t end, std::size_t bucket) {
    if (bucket != measured) {
      const std::size_t size = std::min((bucket + 1) * format.bucket - format.skipped, values.size()) - begin;
      scale = HWY_DYNAMIC_DISPATCH(bucket_scale)(values.data() + begin, size);
      std::memcpy(bytes.data() + 4 * bucket, &scale, sizeof scale);
      measured = bucket;
    }
    HWY_DYNAMIC_DISPATCH(bucket_codes)
    (values.data() + begin, end - begin, scale, levels_of(format), key, static_cast<std::uint32_t>(begin),
     packer.room());
    packer.add(end - begin);
  });
  packer.finish();
}

bool qsgd_recode(const QsgdFormat& format, std::span<const float> values, std::span<const float> scales,
                 std::span<std::byte> bytes) noexcept {
  assert(bytes.size() == qsgd_bytes(format, values.size()));
  const std::size_t buckets = qsgd_buckets(format, values.size());
  if (scales.size() != buckets) return false;
  if (buckets > 0) std::memcpy(bytes.data(), scales.data(), scales.size_bytes());
  CodePacker packer(format.bits, bytes.data() + 4 * buckets);
  bool same = true;
  float decoded[kPiece];
  for_each_piece(format, values.size(), [&](std::size_t begin, std::size_t end, std::size_t bucket) {
    const std::size_t count = end - begin;
    HWY_DYNAMIC_DISPATCH(bucket_recode)
    (values.data() + begin, count, scales[bucket], levels_of(format), packer.room());
    HWY_DYNAMIC_DISPATCH(bucket_values)(packer.room(), count, scales[bucket], levels_of(format), decoded);
    same = same && std::memcmp(decoded, values.data() + begin, count * sizeof(float)) == 0;
    packer.add(count);
  });
  packer.finish();
  return same;
}

bool qsgd_decode(const QsgdFormat& format, std::span<const std::byte> bytes,
                 std::span<float> values) noexcept {
  if (bytes.size() != qsgd_bytes(format, values.size())) return false;
  const std::size_t buckets = qsgd_buckets(format, values.size());
  const std::byte* const packed = bytes.data() + 4 * buckets;
  const auto per_byte = 8 / static_cast<std::size_t>(format.bits);
  const int levels = levels_of(format);
  std::uint8_t codes[kPiece + 8];
  bool good = true;
  for_each_piece(format, values.size(), [&](std::size_t begin, std::size_t end, std::size_t bucket) {
    std::uint32_t bits;
    std::memcpy(&bits, bytes.data() + 4 * bucket, sizeof bits);
    good = good && (bits < 0x7f800000 || bits == 0x7fc00000);
    const std::size_t skipped = begin % per_byte;
    unpack_codes(packed + begin / per_byte, skipped + end - begin, format.bits, codes);
    const std::uint8_t most = HWY_DYNAMIC_DISPATCH(bucket_values)(
        codes + skipped, end - begin, std::bit_cast<float>(bits), levels, values.data() + begin);
    good = good && most <= 2 * levels;
    if (bits == 0 || bits == 0x7fc00000)
      good = good && std::all_of(codes + skipped, codes + skipped + (end - begin),
                                 [&](std::uint8_t code) { return code == levels; });
  });
  if (!good) return false;
  const std::size_t used = values.size() % per_byte * static_cast<std::size_t>(format.bits);
  return used == 0 || std::to_integer<unsigned>(bytes.back()) >> used == 0;
}

}  // namespace nzcl::compress
#endif  // HWY_ONCE
