#include "runtime/tile/value_codec.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "runtime/compress/qsgd.h"
#include "runtime/kernels/narrow.h"

namespace nzcl::engine {

using wire::ValueCode;

namespace {

constexpr std::uint32_t kMagnitude = 0x7fffffff, kInfinity = 0x7f800000;

std::uint32_t magnitude_of(float value) { return std::bit_cast<std::uint32_t>(value) & kMagnitude; }

// --- Narrower floats

std::optional<CodedValues> encode_narrow(std::span<const float> values, ValueCode code,
                                         std::span<std::byte> room) {
  constexpr std::size_t kPiece = 256;
  const std::size_t bytes = values.size() * sizeof(std::uint16_t);
  if (bytes > room.size()) return std::nullopt;
  float back[kPiece];
  for (std::size_t at = 0; at < values.size(); at += kPiece) {
    const auto piece = values.subspan(at, std::min(kPiece, values.size() - at));
    auto* const to = reinterpret_cast<std::uint16_t*>(room.data()) + at;
    narrow(narrow_type(code), piece.data(), piece.size(), to);
    widen(narrow_type(code), to, piece.size(), back);
    if (std::memcmp(back, piece.data(), piece.size_bytes()) != 0) return std::nullopt;
  }
  return CodedValues{code, 0, bytes};
}

// --- Signs

/// The number of runs of values of one magnitude, or more than kMostSignRuns if there are more, or if a value
/// is not finite.
std::size_t count_runs(std::span<const float> values) {
  std::size_t runs = 0;
  std::uint32_t before = ~0u, most = 0;
  for (const float value : values) {
    const std::uint32_t magnitude = magnitude_of(value);
    runs += magnitude != before;
    most = std::max(most, magnitude);
    before = magnitude;
  }
  return most < kInfinity ? runs : wire::kMostSignRuns + 1;
}

/// Appends bytes one behind the other.
class ByteWriter {
 public:
  explicit ByteWriter(std::byte* to) : to_(to) {}
  template <class T>
  void put(T value) {
    std::memcpy(to_, &value, sizeof value);
    to_ += sizeof value;
  }

 private:
  std::byte* to_;
};

void write_sign_bits(std::span<const float> values, std::byte* to) {
  for (std::size_t at = 0; at < values.size(); at += 8) {
    unsigned byte = 0;
    for (std::size_t i = at; i < std::min(at + 8, values.size()); ++i)
      byte |= std::bit_cast<std::uint32_t>(values[i]) >> 31 << (i - at);
    *to++ = static_cast<std::byte>(byte);
  }
}

std::optional<CodedValues> encode_signs(std::span<const float> values, std::span<std::byte> room) {
  const std::size_t runs = count_runs(values);
  if (values.empty() || runs > wire::kMostSignRuns) return std::nullopt;
  const std::size_t bytes = wire::sign_bytes(runs, values.size());
  if (bytes >= values.size_bytes() || bytes > room.size()) return std::nullopt;
  ByteWriter scales(room.data()), lengths(room.data() + runs * sizeof(float));
  for (std::size_t begin = 0; begin < values.size();) {
    const std::uint32_t magnitude = magnitude_of(values[begin]);
    std::size_t end = begin + 1;
    while (end < values.size() && magnitude_of(values[end]) == magnitude) ++end;
    scales.put(magnitude);
    if (end < values.size()) lengths.put(static_cast<std::uint16_t>(end - begin - 1));
    begin = end;
  }
  write_sign_bits(values, room.data() + bytes - (values.size() + 7) / 8);
  return CodedValues{ValueCode::signs, static_cast<std::uint32_t>(runs - 1), bytes};
}

/// Gives every value the magnitude of its run.
bool read_scales(const wire::Tile& tile, std::span<float> values) {
  const std::size_t runs = tile.parameter + 1;
  const std::byte* const lengths = tile.values.data() + runs * sizeof(float);
  std::size_t begin = 0;
  std::uint32_t before = ~0u;
  for (std::size_t run = 0; run < runs; ++run) {
    std::uint32_t scale = 0;
    std::memcpy(&scale, tile.values.data() + run * sizeof scale, sizeof scale);
    if (scale >= kInfinity || scale == before) return false;
    before = scale;
    std::size_t length = values.size() - begin;
    if (run + 1 < runs) {
      std::uint16_t less_1 = 0;
      std::memcpy(&less_1, lengths + run * sizeof less_1, sizeof less_1);
      if (less_1 + std::size_t{1} >= length) return false;  // the last run has a value too
      length = less_1 + std::size_t{1};
    }
    std::fill_n(values.begin() + static_cast<std::ptrdiff_t>(begin), length, std::bit_cast<float>(scale));
    begin += length;
  }
  return true;
}

bool decode_signs(const wire::Tile& tile, std::span<float> values) {
  if (!read_scales(tile, values)) return false;
  const std::byte* const signs = tile.values.data() + tile.values.size() - (values.size() + 7) / 8;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const unsigned bit = std::to_integer<unsigned>(signs[i / 8]) >> (i % 8) & 1;
    values[i] = std::bit_cast<float>(std::bit_cast<std::uint32_t>(values[i]) | bit << 31);
  }
  const std::size_t used = values.size() % 8;
  return used == 0 || std::to_integer<unsigned>(tile.values.back()) >> used == 0;
}

// --- Levels

std::optional<CodedValues> encode_levels(std::span<const float> values, const ValueCoding& coding,
                                         std::span<std::byte> room) {
  const compress::QsgdFormat format{.bits = coding.bits, .bucket = coding.bucket, .skipped = coding.skipped};
  const std::size_t bytes = sizeof(wire::LevelsHead) + qsgd_bytes(format, values.size());
  if (values.empty() || bytes >= values.size_bytes() || bytes > room.size()) return std::nullopt;
  const std::size_t first = std::min(values.size(), coding.bucket - coding.skipped);
  const wire::LevelsHead head{static_cast<std::uint16_t>(coding.bucket - 1),
                              static_cast<std::uint16_t>(first - 1)};
  std::memcpy(room.data(), &head, sizeof head);
  if (!qsgd_recode(format, values, coding.scales, room.subspan(sizeof head, bytes - sizeof head)))
    return std::nullopt;
  return CodedValues{ValueCode::levels, static_cast<std::uint32_t>(coding.bits), bytes};
}

/// wire::read_tile() has checked that there can be such buckets.
bool decode_levels(const wire::Tile& tile, std::span<float> values) {
  wire::LevelsHead head;
  std::memcpy(&head, tile.values.data(), sizeof head);
  const compress::QsgdFormat format{
      .bits = static_cast<int>(tile.parameter),
      .bucket = head.bucket_less_1 + std::size_t{1},
      .skipped = static_cast<std::size_t>(head.bucket_less_1 - head.first_less_1)};
  return qsgd_decode(format, tile.values.subspan(sizeof head), values);
}

}  // namespace

std::optional<CodedValues> encode_values(std::span<const float> values, const ValueCoding& coding,
                                         std::span<std::byte> room) {
  switch (coding.code) {
    case ValueCode::as_is:
      return std::nullopt;
    case ValueCode::float16:
    case ValueCode::bfloat16:
      return encode_narrow(values, coding.code, room);
    case ValueCode::signs:
      return encode_signs(values, room);
    case ValueCode::levels:
      return encode_levels(values, coding, room);
  }
  return std::nullopt;
}

bool decode_values(const wire::Tile& tile, std::span<float> values) {
  switch (tile.value_code) {
    case ValueCode::as_is:
      return false;
    case ValueCode::float16:
    case ValueCode::bfloat16:
      widen(narrow_type(tile.value_code), reinterpret_cast<const std::uint16_t*>(tile.values.data()),
            tile.count, values.data());
      return true;
    case ValueCode::signs:
      return decode_signs(tile, values);
    case ValueCode::levels:
      return decode_levels(tile, values);
  }
  return false;
}

}  // namespace nzcl::engine
