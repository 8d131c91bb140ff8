// Value codecs: round trips, refusals of other bytes, and the statistics of stochastic rounding.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "each_target.h"
#include "guarded.h"
#include "runtime/compress/bin_code.h"
#include "runtime/compress/qsgd.h"
#include "runtime/compress/random.h"
#include "runtime/kernels/elements.h"
#include "runtime/kernels/offsets.h"

namespace nzcl::compress {
namespace {

using test::Guarded;
using test::on_each_target;
using Bytes = std::vector<std::byte>;

std::vector<float> normal_values(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> values(count);
  for (float& v : values) v = static_cast<float>(std::normal_distribution<double>()(random));
  return values;
}

Bytes encoded(const QsgdFormat& format, std::span<const float> values, std::uint64_t key) {
  const Guarded bytes(qsgd_bytes(format, values.size()));
  qsgd_encode(format, values, key, bytes.bytes());
  return {bytes.bytes().begin(), bytes.bytes().end()};
}

/// The description of qsgd.h, one value at a time.
std::vector<float> naive_qsgd(const QsgdFormat& format, std::span<const float> values, std::uint64_t key) {
  const float levels = static_cast<float>((1 << (format.bits - 1)) - 1);
  std::vector<float> result;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::size_t begin = i / format.bucket * format.bucket;
    float scale = 0;
    bool finite = true;
    for (std::size_t k = begin; k < std::min(values.size(), begin + format.bucket); ++k) {
      scale = std::max(scale, std::fabs(values[k]));
      finite = finite && std::isfinite(values[k]);
    }
    if (!finite || scale == 0) {
      result.push_back(finite ? 0.0f : std::numeric_limits<float>::quiet_NaN());
      continue;
    }
    const float exact = std::fabs(values[i]) / scale * levels;
    const float drawn = static_cast<float>(hash32(key, static_cast<std::uint32_t>(i)) >> 8) * 0x1p-24f;
    const float level = std::floor(exact) + (drawn < exact - std::floor(exact) ? 1.0f : 0.0f);
    result.push_back((level > 0 && values[i] < 0 ? -level : level) / levels * scale);
  }
  return result;
}

std::vector<std::uint32_t> bits(std::span<const float> values) {
  std::vector<std::uint32_t> all;
  for (const float v : values) all.push_back(std::bit_cast<std::uint32_t>(v));
  return all;
}

class QsgdCodec : public ::testing::TestWithParam<int> {};

TEST_P(QsgdCodec, EqualsAScalarLoopOnEveryTarget) {
  for (const std::size_t count : {0, 1, 2, 3, 5, 17, 100, 511, 512, 513, 1030, 3001}) {
    for (const std::size_t bucket : {1, 7, 64, 1000}) {
      const QsgdFormat format{.bits = GetParam(), .bucket = bucket};
      std::vector<float> values = normal_values(count, 1);
      if (count > 100) {
        values[3] = 0, values[4] = -0.0f, values[5] = std::numeric_limits<float>::denorm_min();
        std::fill_n(values.begin() + 7, 64, 0.0f);  // a bucket of zeros
        std::fill_n(values.begin() + 71, 7,
                    -3 * std::numeric_limits<float>::denorm_min());  // and of the smallest
        values[90] = std::numeric_limits<float>::max();
      }
      if (count == 513) values[500] = std::numeric_limits<float>::infinity();
      if (count == 1030) values[0] = std::numeric_limits<float>::quiet_NaN();
      const auto expected = bits(naive_qsgd(format, values, 77));
      on_each_target([&, count = count, bucket = bucket] {
        const Guarded decoded(count * sizeof(float));
        const std::span result(reinterpret_cast<float*>(decoded.data()), count);
        ASSERT_TRUE(qsgd_decode(format, encoded(format, values, 77), result));
        ASSERT_EQ(bits(result), expected) << count << " values in buckets of " << bucket;
      });
      if (HasFatalFailure()) return;
    }
  }
}

// The mean of many codings of one value comes as near to it as the variance of the rounding allows: within
// five of its standard deviations, for every one of 500 values. Fixed seeds.
TEST_P(QsgdCodec, IsUnbiased) {
  const QsgdFormat format{.bits = GetParam(), .bucket = 500};
  constexpr int kTimes = 4000;
  const auto values = normal_values(500, 3);
  const double scale = *std::ranges::max_element(values, {}, [](float v) { return std::fabs(v); });
  const double step = std::fabs(scale) / ((1 << (format.bits - 1)) - 1);
  std::vector<double> sums(values.size());
  std::vector<float> result(values.size());
  for (int i = 0; i < kTimes; ++i) {
    ASSERT_TRUE(qsgd_decode(format, encoded(format, values, make_key(9, static_cast<std::uint64_t>(i), 0, 0)),
                            result));
    for (std::size_t k = 0; k < sums.size(); ++k) sums[k] += double{result[k]};
  }
  double total_error = 0;
  for (std::size_t k = 0; k < sums.size(); ++k) {
    const double share =
        std::fabs(double{values[k]}) / step - std::floor(std::fabs(double{values[k]}) / step);
    const double deviation = step * std::sqrt(share * (1 - share) / kTimes);
    const double error = sums[k] / kTimes - double{values[k]};
    EXPECT_LE(std::fabs(error), 5 * deviation + 1e-6 * std::fabs(scale)) << k;
    total_error += error;
  }
  // Nor do the errors of all values have a common direction.
  EXPECT_LE(std::fabs(total_error), 5 * step / 2 * std::sqrt(500.0 / kTimes));
}

// Ranks and steps must not round in the same direction, or their errors would add up.
TEST_P(QsgdCodec, KeysGiveIndependentErrors) {
  const QsgdFormat format{.bits = GetParam(), .bucket = 4096};
  const auto values = normal_values(4096, 4);
  std::vector<float> a(values.size()), b(values.size());
  for (std::uint64_t rank = 0; rank < 8; ++rank) {
    ASSERT_TRUE(qsgd_decode(format, encoded(format, values, make_key(1, 5, 0, rank)), a));
    ASSERT_TRUE(qsgd_decode(format, encoded(format, values, make_key(1, 5, 0, rank + 1)), b));
    double product = 0, squares_a = 0, squares_b = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double error_a = double{a[i]} - double{values[i]}, error_b = double{b[i]} - double{values[i]};
      product += error_a * error_b, squares_a += error_a * error_a, squares_b += error_b * error_b;
    }
    EXPECT_LT(std::fabs(product) / std::sqrt(squares_a * squares_b), 5 / std::sqrt(4096.0)) << rank;
  }
}

TEST_P(QsgdCodec, RefusesOtherBytes) {
  const QsgdFormat format{.bits = GetParam(), .bucket = 64};
  const auto values = normal_values(101, 5);
  const Bytes good = encoded(format, values, 1);
  std::vector<float> result(values.size());
  ASSERT_TRUE(qsgd_decode(format, good, result));
  const auto refused = [&](auto change) {
    Bytes bad = good;
    change(bad);
    return !qsgd_decode(format, bad, result);
  };
  EXPECT_TRUE(refused([](Bytes& b) { b.pop_back(); }));
  EXPECT_TRUE(refused([](Bytes& b) { b.push_back({}); }));
  EXPECT_TRUE(refused([](Bytes& b) { b[3] |= std::byte{0x80}; })) << "a negative scale";
  EXPECT_TRUE(refused([](Bytes& b) { b[3] = std::byte{0x7f}, b[2] = std::byte{0x80}, b[1] = b[0] = {}; }))
      << "infinity";
  EXPECT_TRUE(refused([](Bytes& b) { b[0] = b[1] = b[2] = b[3] = {}; })) << "a scale of 0 with other levels";
  EXPECT_TRUE(refused([](Bytes& b) { b[8] = std::byte{0xff}; })) << "a code that does not occur";
  if (GetParam() < 8) {
    EXPECT_TRUE(refused([](Bytes& b) { b.back() |= std::byte{0x80}; })) << "an unused bit";
  }
}

INSTANTIATE_TEST_SUITE_P(Bits, QsgdCodec, ::testing::Values(2, 4, 8));

// ---- AdaComp's entries

struct Slice {
  std::vector<std::uint32_t> ends;
  std::vector<std::uint16_t> offsets;
  std::vector<float> values;
};

Slice random_slice(std::size_t elements, std::size_t bin, double density, std::mt19937& random) {
  Slice s;
  for (std::size_t at = 0; at < elements; at += bin)
    s.ends.push_back(static_cast<std::uint32_t>(std::min(elements, at + bin)));
  for (std::size_t i = 0; i < elements; ++i) {
    if (std::uniform_real_distribution()(random) >= density) continue;
    s.offsets.push_back(static_cast<std::uint16_t>(i));
    s.values.push_back(random() % 2 == 0 ? 0.25f : -0.25f);
  }
  return s;
}

std::size_t code_bytes(const std::vector<std::uint32_t>& ends, const std::vector<std::uint16_t>& offsets) {
  std::vector<std::uint64_t> bitmap(kMostSliceElements / 64);
  bitmap_of(offsets, bitmap);
  return bin_code_bytes(ends, bitmap, offsets.size());
}

TEST(BinCode, RoundTrips) {
  std::mt19937 random(6);
  for (const std::size_t bin : {4, 50, 63, 64, 500, 16383}) {
    for (const double density : {0.0, 0.0001, 0.01, 0.3, 1.0}) {
      for (const std::size_t elements : {1, 63, 1000, 65536}) {
        const Slice s = random_slice(elements, bin, density, random);
        const std::size_t size = code_bytes(s.ends, s.offsets);
        const Guarded bytes(size);
        ASSERT_EQ(encode_bins(s.ends, {s.offsets, s.values}, bytes.bytes()), size);
        if (size > 0) {
          const Guarded less(size - 1);
          ASSERT_EQ(encode_bins(s.ends, {s.offsets, s.values}, less.bytes()), 0u);
        }
        std::vector<std::uint16_t> offsets(s.offsets.size());
        std::vector<float> values(s.values.size());
        ASSERT_TRUE(decode_bins(s.ends, bytes.bytes(), 0.25f, offsets, values)) << bin << " " << density;
        ASSERT_EQ(offsets, s.offsets);
        ASSERT_EQ(values, s.values);
        if (!offsets.empty()) {
          offsets.pop_back(), values.pop_back();
          ASSERT_FALSE(decode_bins(s.ends, bytes.bytes(), 0.25f, offsets, values)) << "one entry too many";
        }
      }
    }
  }
}

// The figures of the paper: 8 bits per entry for bins below 64, and 16 bits above, where every bin sends.
TEST(BinCode, TakesOneByteOrTwoForAnEntry) {
  const std::vector<std::uint16_t> offsets{3, 7, 60, 120};
  EXPECT_EQ(code_bytes({50, 100, 150}, offsets), 4u);
  EXPECT_EQ(code_bytes({64, 128}, offsets), 8u);
}

// Any bytes decode to a slice that is coded to the same bytes, or are refused.
RC_GTEST_PROP(BinCodeProperty, AnyBytesAreOneCodingOrRefused, ()) {
  const auto bin = *rc::gen::element<std::uint32_t>(4, 10, 100);
  const auto bytes = *rc::gen::container<std::vector<std::uint8_t>>(rc::gen::inRange<std::uint8_t>(0, 48));
  const auto count = *rc::gen::inRange<std::size_t>(0, bytes.size() + 1);
  std::vector<std::uint32_t> ends;
  for (std::uint32_t at = bin; at <= 20 * bin; at += bin) ends.push_back(at);
  std::vector<std::uint16_t> offsets(count);
  std::vector<float> values(count);
  const auto given = std::as_bytes(std::span(bytes));
  if (!decode_bins(ends, given, 1.0f, offsets, values)) return;
  Bytes again(bytes.size());
  RC_ASSERT(encode_bins(ends, {offsets, values}, again) == bytes.size());
  RC_ASSERT(std::ranges::equal(again, given));
}

}  // namespace
}  // namespace nzcl::compress
