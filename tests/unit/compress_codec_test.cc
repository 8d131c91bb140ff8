// Value codecs: round trips, refusals of other bytes, and the statistics of stochastic rounding.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "compressor_cases.h"
#include "each_target.h"
#include "guarded.h"
#include "runtime/base/mix.h"
#include "runtime/compress/qsgd.h"

namespace nzcl::compress {
namespace {

using test::Guarded;
using test::normal_values;
using test::on_each_target;
using Bytes = std::vector<std::byte>;

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

}  // namespace
}  // namespace nzcl::compress
