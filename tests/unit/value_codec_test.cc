// Values of tiles from floats to bytes and back, in every code; and bytes that no sender writes.
#include "runtime/tile/value_codec.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "guarded.h"
#include "runtime/compress/qsgd.h"

namespace nzcl::engine {
namespace {

using compress::QsgdFormat;
using test::Guarded;
using wire::ValueCode;

using Floats = std::vector<float>;
using Bytes = std::vector<std::byte>;

std::vector<std::uint32_t> bits_of(std::span<const float> values) {
  std::vector<std::uint32_t> bits;
  for (const float v : values) bits.push_back(std::bit_cast<std::uint32_t>(v));
  return bits;
}

/// What a receiver makes of a tile with such values; nothing if it refuses them.
std::optional<Floats> received(ValueCode code, std::uint32_t parameter, const Bytes& bytes,
                               std::size_t count) {
  const Guarded from(bytes.size()), to(count * sizeof(float));
  std::ranges::copy(bytes, from.data());
  const wire::Tile tile{.count = static_cast<std::uint32_t>(count),
                        .index_code = wire::IndexCode::all,
                        .value_code = code,
                        .parameter = parameter,
                        .values = from.bytes(),
                        .index = {}};
  const std::span values(reinterpret_cast<float*>(to.data()), count);
  if (!decode_values(tile, values)) return std::nullopt;
  return Floats(values.begin(), values.end());
}

struct Coded {
  ValueCode code = ValueCode::as_is;
  std::uint32_t parameter = 0;
  Bytes bytes;
};

/// Encodes into memory of the values' own size, which no code exceeds.
std::optional<Coded> encoded(const Floats& values, const ValueCoding& coding) {
  const Guarded room(values.size() * sizeof(float));
  const auto coded = encode_values(values, coding, room.bytes());
  if (!coded) return std::nullopt;
  const auto bytes = room.bytes().first(coded->bytes);
  return Coded{coded->code, coded->parameter, {bytes.begin(), bytes.end()}};
}

/// The size that receivers expect of such values.
std::uint64_t expected_bytes(const Coded& coded, std::size_t count) {
  const wire::TileDescriptor descriptor{static_cast<std::uint32_t>(count), wire::IndexCode::all, coded.code,
                                        coded.parameter};
  const char* wrong = nullptr;
  const auto bytes = wire::coded_bytes(descriptor, DataType::float32, wire::TileParts(coded.bytes, 0), wrong);
  return wrong == nullptr ? bytes : 0;
}

void expect_round_trip(const Floats& values, const ValueCoding& coding) {
  const auto coded = encoded(values, coding);
  ASSERT_TRUE(coded);
  EXPECT_EQ(coded->code, coding.code);
  EXPECT_EQ(expected_bytes(*coded, values.size()), coded->bytes.size());
  const auto back = received(coded->code, coded->parameter, coded->bytes, values.size());
  ASSERT_TRUE(back);
  EXPECT_EQ(bits_of(*back), bits_of(values));
}

constexpr ValueCoding kSigns{.code = ValueCode::signs};

TEST(ValueCodec, SignsComeBack) {
  expect_round_trip({1.5f, -1.5f, 1.5f}, kSigns);
  expect_round_trip({0.0f, -0.0f, 0.0f}, kSigns);
  expect_round_trip(Floats(65'536, -0x1p-149f), kSigns);
  expect_round_trip({2, 2, -2, 2, 2, 2, -2, 2, 2, 2, 2, 7, 7, -7, 7, 7, 7, 7, 7, 7, 2, 2, -2}, kSigns);
}

TEST(ValueCodec, ManyMagnitudesAreNoSigns) {
  EXPECT_FALSE(encoded({1, 2, 3, 4}, kSigns));
  EXPECT_FALSE(encoded({1}, kSigns));  // as short as it is
  EXPECT_FALSE(encoded({}, kSigns));
  Floats values(4'000, 1.0f);
  EXPECT_TRUE(encoded(values, kSigns));
  values[17] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_FALSE(encoded(values, kSigns));
  values[17] = -std::numeric_limits<float>::infinity();
  EXPECT_FALSE(encoded(values, kSigns));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = (i / 7) % 2 == 0 ? 1.0f : 2.0f;
  EXPECT_FALSE(encoded(values, kSigns));  // more runs than there may be
}

TEST(ValueCodec, TheBytesOfSigns) {
  const auto coded = encoded({1, 1, -1, 2, 2, 2, 2, -2, 2, 2, 2}, kSigns);
  ASSERT_TRUE(coded);
  EXPECT_EQ(coded->parameter, 1u);
  const unsigned char expected[] = {0, 0, 0x80, 0x3f, 0, 0, 0, 0x40, 2, 0, 0x84, 0};
  EXPECT_EQ(std::memcmp(coded->bytes.data(), expected, sizeof expected), 0);
  EXPECT_EQ(coded->bytes.size(), sizeof expected);
}

TEST(ValueCodec, BadSignsAreRefused) {
  const auto coded = encoded({1, 1, -1, 2, 2, 2, 2, -2, 2, 2, 2}, kSigns);
  ASSERT_TRUE(coded);
  const auto refused = [&](std::size_t at, int value) {
    Bytes bytes = coded->bytes;
    bytes[at] = static_cast<std::byte>(value);
    return !received(ValueCode::signs, 1, bytes, 11);
  };
  EXPECT_FALSE(refused(2, 0x81));
  EXPECT_TRUE(refused(3, 0xbf));   // a magnitude with a sign
  EXPECT_TRUE(refused(3, 0x7f));   // infinity
  EXPECT_TRUE(refused(8, 10));     // no value is left for the last run
  EXPECT_TRUE(refused(9, 1));      // a run that is longer than the tile
  EXPECT_TRUE(refused(11, 0x08));  // an unused bit
  Bytes same = coded->bytes;
  std::copy_n(same.begin(), 4, same.begin() + 4);
  EXPECT_FALSE(received(ValueCode::signs, 1, same, 11));  // two runs that are one
}

RC_GTEST_PROP(ValueCodec, RunsOfSignsComeBack, ()) {
  const auto lengths = *rc::gen::nonEmpty(rc::gen::container<std::vector<int>>(rc::gen::inRange(1, 400)));
  std::mt19937 random(*rc::gen::arbitrary<unsigned>());
  Floats values;
  for (const int length : lengths) {
    const float scale = std::uniform_real_distribution<float>(0.1f, 9.0f)(random);
    for (int i = 0; i < length; ++i) values.push_back(random() % 2 == 0 ? scale : -scale);
  }
  if (const auto coded = encoded(values, kSigns)) {
    RC_ASSERT(expected_bytes(*coded, values.size()) == coded->bytes.size());
    const auto back = received(coded->code, coded->parameter, coded->bytes, values.size());
    RC_ASSERT(back.has_value());
    RC_ASSERT(bits_of(*back) == bits_of(values));
  } else {
    RC_ASSERT(lengths.size() * 6 + values.size() / 8 + 8 >= values.size() * 4);
  }
}

// Any bytes are refused, or are the one encoding of what they are decoded to.
RC_GTEST_PROP(ValueCodec, AnyBytesAreSignsOrRefused, ()) {
  const auto raw = *rc::gen::container<std::vector<std::uint8_t>>(
      rc::gen::element<std::uint8_t>(0, 1, 2, 3, 0x3f, 0x40, 255));
  const auto runs = *rc::gen::inRange<std::uint64_t>(1, 4);
  const auto count = *rc::gen::inRange<std::uint64_t>(runs + 4, 40);
  Bytes bytes(wire::sign_bytes(runs, count));
  for (std::size_t i = 0; i < std::min(raw.size(), bytes.size()); ++i) bytes[i] = std::byte{raw[i]};
  const auto parameter = static_cast<std::uint32_t>(runs - 1);
  const auto values = received(ValueCode::signs, parameter, bytes, count);
  if (!values) return;
  if (const auto again = encoded(*values, kSigns)) {
    RC_ASSERT(again->parameter == parameter);
    RC_ASSERT(again->bytes == bytes);
  }
}

TEST(ValueCodec, NarrowFloatsComeBack) {
  expect_round_trip({1.5f, -2.0f, 0.0f, std::numeric_limits<float>::infinity()},
                    {.code = ValueCode::float16});
  expect_round_trip(Floats(1000, 0x1.02p100f), {.code = ValueCode::bfloat16});
  EXPECT_FALSE(encoded({1.5f, 1.0001f}, {.code = ValueCode::float16}));
  EXPECT_FALSE(encoded(Floats(300, 0x1.01p100f), {.code = ValueCode::bfloat16}));
  EXPECT_FALSE(encoded({1, 2}, {}));
}

/// Values as QSGD leaves them, and the scales of their buckets.
struct Quantised {
  Floats values, scales;
};
Quantised quantised(const QsgdFormat& format, Floats values) {
  Bytes bytes(qsgd_bytes(format, values.size()));
  qsgd_encode(format, values, 7, bytes);
  EXPECT_TRUE(qsgd_decode(format, bytes, values));
  Floats scales(qsgd_buckets(format, values.size()));
  std::memcpy(scales.data(), bytes.data(), scales.size() * sizeof(float));
  return {values, scales};
}

RC_GTEST_PROP(ValueCodec, AnyPartOfQuantisedValuesComesBack, ()) {
  const QsgdFormat format{.bits = *rc::gen::element(2, 4, 8),
                          .bucket = *rc::gen::element<std::size_t>(16, 100, 1024, 65536)};
  std::mt19937 random(*rc::gen::arbitrary<unsigned>());
  Floats values(*rc::gen::inRange<std::size_t>(80, 3000));
  for (float& v : values) v = static_cast<float>(std::normal_distribution<double>()(random));
  values[values.size() / 2] = *rc::gen::element(0.0f, std::numeric_limits<float>::quiet_NaN(), 1e30f);
  const Quantised q = quantised(format, values);
  const auto first = *rc::gen::inRange<std::size_t>(0, values.size() - 64);
  const auto last = *rc::gen::inRange<std::size_t>(first + 64, values.size() + 1);
  const std::size_t bucket = first / format.bucket, end = (last + format.bucket - 1) / format.bucket;
  const Floats part(q.values.begin() + static_cast<std::ptrdiff_t>(first),
                    q.values.begin() + static_cast<std::ptrdiff_t>(last));
  expect_round_trip(part, {.code = ValueCode::levels,
                           .bits = format.bits,
                           .bucket = format.bucket,
                           .skipped = first % format.bucket,
                           .scales = std::span(q.scales).subspan(bucket, end - bucket)});
  RC_ASSERT(!::testing::Test::HasFailure());
}

// A multiple of a subnormal scale may be that of several levels, or of none.
TEST(ValueCodec, LevelsThatWouldNotComeBackAreRefused) {
  Floats values(100, 1.0f);
  const Floats scales{1.0f};
  const ValueCoding coding{.code = ValueCode::levels, .bits = 4, .bucket = 1024, .scales = scales};
  EXPECT_TRUE(encoded(values, coding));
  values[3] = 0.3f;
  EXPECT_FALSE(encoded(values, coding));
  EXPECT_FALSE(
      encoded(Floats(100, 1.0f), {.code = ValueCode::levels, .bits = 4, .bucket = 16, .scales = scales}));
}

TEST(ValueCodec, BadLevelsAreRefused) {
  const Floats scales{1.0f, 2.0f};
  const auto coded =
      encoded(Floats(24, 0.0f), {.code = ValueCode::levels, .bits = 4, .bucket = 16, .scales = scales});
  ASSERT_TRUE(coded);
  EXPECT_TRUE(received(ValueCode::levels, 4, coded->bytes, 24));
  const auto refused = [&](std::size_t at, int value) {
    Bytes bytes = coded->bytes;
    bytes[at] = static_cast<std::byte>(value);
    return !received(ValueCode::levels, 4, bytes, 24);
  };
  EXPECT_TRUE(refused(7, 0xff));   // a negative scale
  EXPECT_TRUE(refused(12, 0xff));  // levels that do not exist
  const auto buckets = [](int bucket, int first, std::uint64_t count) {
    return wire::level_buckets(
        {static_cast<std::uint16_t>(bucket - 1), static_cast<std::uint16_t>(first - 1)}, count);
  };
  EXPECT_EQ(buckets(16, 16, 24), 2u);
  EXPECT_EQ(buckets(16, 7, 24), 3u);
  EXPECT_EQ(buckets(65536, 24, 24), 1u);
  EXPECT_EQ(buckets(16, 17, 24), 0u);
  EXPECT_EQ(buckets(64, 25, 24), 0u);
}

RC_GTEST_PROP(ValueCodec, AnyBytesAreLevelsOrRefused, (std::vector<std::uint8_t> raw)) {
  const auto bits = *rc::gen::element<std::uint32_t>(2, 4, 8);
  const auto count = *rc::gen::inRange<std::uint64_t>(1, 60);
  raw.resize(std::max<std::size_t>(raw.size(), 4));
  const wire::LevelsHead head{static_cast<std::uint16_t>(raw[0] % 32),
                              static_cast<std::uint16_t>(raw[1] % 32)};
  const std::uint64_t buckets = wire::level_buckets(head, count);
  if (buckets == 0) return;
  Bytes bytes(wire::level_bytes(buckets, count, bits));
  for (std::size_t i = 0; i < std::min(raw.size(), bytes.size()); ++i) bytes[i] = std::byte{raw[i]};
  std::memcpy(bytes.data(), &head, sizeof head);
  const auto values = received(ValueCode::levels, bits, bytes, count);
  if (!values) return;
  for (const float v : *values) RC_ASSERT(!std::isinf(v));
}

}  // namespace
}  // namespace nzcl::engine
