// float32 as fixed point: against plain loops, on every instruction set, and within the documented error.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "runtime/kernels/fixed_point.h"
#include "tests/unit/each_target.h"

namespace nzcl::test {
namespace {

std::vector<float> random_floats(std::size_t count, unsigned seed, int least, int most) {
  std::mt19937 random(seed);
  std::vector<float> values(count);
  for (float& v : values) {
    const int exponent = least + static_cast<int>(random() % static_cast<unsigned>(most - least + 1));
    v = std::ldexp(static_cast<float>(random() % 20001) / 10000 - 1, exponent);
  }
  return values;
}

TEST(FixedPoint, TheLargestExponentIsThatOfTheLargestMagnitude) {
  on_each_target([] {
    for (const std::size_t n : {0, 1, 3, 16, 17, 100}) {
      std::vector<float> values(n, 0.25f);
      EXPECT_EQ(largest_exponent(values.data(), n), n ? 125 : 0);
      if (n == 0) continue;
      values.back() = -5;
      EXPECT_EQ(largest_exponent(values.data(), n), 129);
      values.front() = std::numeric_limits<float>::denorm_min();
      if (n == 1) {
        EXPECT_EQ(largest_exponent(values.data(), n), 0);
      }
      for (const float odd : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                              std::numeric_limits<float>::quiet_NaN()}) {
        values.back() = odd;
        EXPECT_EQ(largest_exponent(values.data(), n), kNotFinite);
      }
    }
  });
}

TEST(FixedPoint, EqualsPlainRoundingOnEveryTarget) {
  for (const int shift : {-108, -1, 0, 7, 29, 155}) {
    const auto values = random_floats(1003, 5, -20 - shift, 28 - shift > 127 ? 127 : 28 - shift);
    std::vector<std::int32_t> expected;
    for (const float v : values)
      expected.push_back(
          static_cast<std::int32_t>(std::nearbyint(std::ldexp(static_cast<double>(v), shift))));
    on_each_target([&] {
      std::vector<std::int32_t> to(values.size());
      EXPECT_FALSE(to_fixed(values.data(), values.size(), shift, 1 << 30, to.data()));
      EXPECT_EQ(to, expected) << "shift " << shift;
    });
  }
}

TEST(FixedPoint, ClampsAndSaysSo) {
  on_each_target([] {
    for (const std::size_t n : {1, 5, 64}) {
      std::vector<float> values(n, 1);
      std::vector<std::int32_t> to(n);
      for (const float odd : {1025.0f, std::numeric_limits<float>::infinity(), std::nanf("")}) {
        values[n / 2] = odd;
        EXPECT_TRUE(to_fixed(values.data(), n, 0, 1024, to.data()));
        EXPECT_EQ(to[n / 2], 1024);
        values[n / 2] = std::copysign(odd, -1.0f);
        EXPECT_TRUE(to_fixed(values.data(), n, 0, 1024, to.data()));
        EXPECT_EQ(to[n / 2], -1024);
      }
      values[n / 2] = -1024;
      EXPECT_FALSE(to_fixed(values.data(), n, 0, 1024, to.data()));
    }
  });
}

TEST(FixedPoint, SumsStayWithinTheDocumentedError) {
  for (const int ranks : {2, 3, 8}) {
    const int h = static_cast<int>(std::ceil(std::log2(ranks)));
    for (const int exponent : {-140, -126, -30, 0, 60, 120}) {
      std::vector<std::vector<float>> inputs;
      std::uint8_t e = 0;
      for (int r = 0; r < ranks; ++r) {
        inputs.push_back(random_floats(257, static_cast<unsigned>(r), exponent - 8, exponent));
        e = std::max(e, largest_exponent(inputs.back().data(), 257));
      }
      const int biased = std::max<int>(e, 1), shift = 156 - h - biased;
      const double bound = ranks / 2.0 * std::ldexp(1.0, biased + h - 156);
      std::vector<std::int32_t> sum(257), part(257);
      for (const auto& input : inputs) {
        EXPECT_FALSE(to_fixed(input.data(), 257, shift, 1 << (30 - h), part.data()));
        add_wrapping(part.data(), 257, sum.data());
      }
      std::vector<float> result(257);
      from_fixed(sum.data(), 257, shift, 1, result.data());
      for (std::size_t i = 0; i < 257; ++i) {
        double exact = 0;
        for (const auto& input : inputs) exact += static_cast<double>(input[i]);
        const double own = std::abs(exact) * 0x1p-24 + 0x1p-150;  // of float32 itself
        EXPECT_LE(std::abs(static_cast<double>(result[i]) - exact), bound + own + bound * 0x1p-24);
      }
    }
  }
}

TEST(FixedPoint, AdditionWraps) {
  on_each_target([] {
    std::vector<std::int32_t> from(37, 1), to(37, std::numeric_limits<std::int32_t>::max());
    add_wrapping(from.data(), from.size(), to.data());
    for (const std::int32_t v : to) EXPECT_EQ(v, std::numeric_limits<std::int32_t>::min());
  });
}

TEST(FixedPoint, AveragesAreDivided) {
  on_each_target([] {
    const std::vector<std::int32_t> from(37, 3 << 10);
    std::vector<float> to(37);
    from_fixed(from.data(), from.size(), 10, 4, to.data());
    for (const float v : to) EXPECT_EQ(v, 0.75f);
  });
}

}  // namespace
}  // namespace nzcl::test
