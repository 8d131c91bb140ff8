#include "runtime/kernels/reduce.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "any_values.h"
#include "each_target.h"
#include "guarded.h"
#include "reference.h"

namespace nzcl {
namespace {

using test::Guarded;
using test::on_each_target;
using test::reference_reduce;

const std::vector<DataType> kTypes{DataType::float32,  DataType::float64, DataType::float16,
                                   DataType::bfloat16, DataType::int32,   DataType::int64,
                                   DataType::uint8};
const std::vector<ReduceOp> kOps{ReduceOp::sum, ReduceOp::avg, ReduceOp::min, ReduceOp::max};

/// Sources that each end at an inaccessible page, and the result that their reduction must have.
class Sources {
 public:
  Sources(DataType type, std::size_t count, std::size_t elements, std::mt19937_64& random)
      : type_(type), elements_(elements) {
    for (std::size_t s = 0; s < count; ++s) {
      buffers_.push_back(std::make_unique<Guarded>(elements * element_bytes(type)));
      test::fill_with_any_values(buffers_.back()->bytes(), type, random);
      pointers_.push_back(buffers_.back()->data());
    }
  }

  std::vector<std::byte> expected(ReduceOp op, const ReduceSpec& spec) const {
    return reference_reduce(type_, op, pointers_, elements_, spec);
  }

  std::vector<std::byte> reduce_into_new(ReduceOp op, const ReduceSpec& spec) const {
    const Guarded dst(elements_ * element_bytes(type_));
    reduce_kernel(type_, op)(dst.data(), pointers_.data(), pointers_.size(), elements_, spec);
    return {dst.bytes().begin(), dst.bytes().end()};
  }

  /// Reduces in place: the destination is source s, whose bytes are restored afterwards.
  std::vector<std::byte> reduce_into_source(std::size_t s, ReduceOp op, const ReduceSpec& spec) const {
    const auto bytes = buffers_[s]->bytes();
    const std::vector<std::byte> before(bytes.begin(), bytes.end());
    reduce_kernel(type_, op)(bytes.data(), pointers_.data(), pointers_.size(), elements_, spec);
    const std::vector<std::byte> result(bytes.begin(), bytes.end());
    std::ranges::copy(before, bytes.begin());
    return result;
  }

 private:
  DataType type_;
  std::size_t elements_;
  std::vector<std::unique_ptr<Guarded>> buffers_;
  std::vector<const std::byte*> pointers_;
};

class Reduce : public ::testing::TestWithParam<std::tuple<DataType, ReduceOp>> {};

TEST_P(Reduce, EqualsAScalarLoop) {
  const auto [type, op] = GetParam();
  std::mt19937_64 random(1);
  for (const std::size_t count : {1, 2, 3, 5, 8, 17}) {
    // Sizes around one vector and around one chunk of every instruction set and type, primes, and several
    // chunks with a tail.
    for (const std::size_t elements :
         {0, 1, 2, 3, 7, 8, 13, 15, 16, 17, 31, 63, 64, 65, 127, 257, 1009, 4099}) {
      const Sources sources(type, count, elements, random);
      for (const bool with_zero : {false, true}) {
        const ReduceSpec spec{.ranks = static_cast<int>(count) + (with_zero ? 3 : 0), .with_zero = with_zero};
        const auto expected = sources.expected(op, spec);
        on_each_target([&] {
          const auto where = [&, elements = elements] {
            return std::to_string(count) + " sources, " + std::to_string(elements) + " elements";
          };
          ASSERT_EQ(sources.reduce_into_new(op, spec), expected) << where();
          ASSERT_EQ(sources.reduce_into_source(0, op, spec), expected) << "in the first of " << where();
          ASSERT_EQ(sources.reduce_into_source(count - 1, op, spec), expected)
              << "in the last of " << where();
          ASSERT_EQ(sources.reduce_into_source(count / 2, op, spec), expected)
              << "in the middle of " << where();
        });
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Reduce,
                         ::testing::Combine(::testing::ValuesIn(kTypes), ::testing::ValuesIn(kOps)),
                         [](const auto& param_info) {
                           return std::string(name_of(std::get<0>(param_info.param))) + "_" +
                                  std::string(name_of(std::get<1>(param_info.param)));
                         });

RC_GTEST_PROP(ReduceProperty, EqualsAScalarLoop, ()) {
  const auto type = *rc::gen::elementOf(kTypes);
  const auto op = *rc::gen::elementOf(kOps);
  const auto count = *rc::gen::inRange<std::size_t>(1, 70);
  const auto elements = *rc::gen::inRange<std::size_t>(0, 600);
  const int skipped = *rc::gen::inRange(0, 300);
  const ReduceSpec spec{.ranks = static_cast<int>(count) + skipped, .with_zero = *rc::gen::arbitrary<bool>()};
  std::mt19937_64 random(*rc::gen::arbitrary<std::uint64_t>());
  const Sources sources(type, count, elements, random);
  const auto expected = sources.expected(op, spec);
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    const ForcedTarget forced(target);
    RC_ASSERT(sources.reduce_into_new(op, spec) == expected);
  }
}

template <typename T>
std::vector<T> reduce_vectors(DataType type, ReduceOp op, const std::vector<std::vector<T>>& sources,
                              ReduceSpec spec) {
  std::vector<const std::byte*> pointers;
  for (const auto& source : sources) pointers.push_back(std::as_bytes(std::span(source)).data());
  std::vector<T> dst(sources[0].size());
  reduce_kernel(type, op)(std::as_writable_bytes(std::span(dst)).data(), pointers.data(), pointers.size(),
                          dst.size(), spec);
  return dst;
}

class ReduceHalf : public ::testing::TestWithParam<DataType> {};

// Every 16-bit value, alone and added to another one, so that the conversions of every instruction set are
// compared with the reference completely.
TEST_P(ReduceHalf, All65536Values) {
  const DataType type = GetParam();
  std::vector<std::uint16_t> all(65536), other(65536);
  for (std::uint32_t i = 0; i < 65536; ++i) {
    all[i] = static_cast<std::uint16_t>(i);
    other[i] = static_cast<std::uint16_t>(i * 40503 +
                                          977);  // the factor is odd, so this is a permutation of all values
  }
  const std::byte* pointers[] = {std::as_bytes(std::span(all)).data(),
                                 std::as_bytes(std::span(other)).data()};
  const auto check = [&](ReduceOp op, const std::vector<std::vector<std::uint16_t>>& sources, int ranks) {
    const ReduceSpec spec{.ranks = ranks, .with_zero = false};
    const auto bytes = reference_reduce(type, op, {pointers, sources.size()}, all.size(), spec);
    std::vector<std::uint16_t> expected(all.size());
    std::memcpy(expected.data(), bytes.data(), bytes.size());
    on_each_target([&] { ASSERT_EQ(reduce_vectors(type, op, sources, spec), expected); });
  };
  for (const int ranks : {1, 2, 3, 1000, 1 << 20}) check(ReduceOp::avg, {all}, ranks);
  check(ReduceOp::sum, {all, other}, 2);
  check(ReduceOp::avg, {all, other}, 7);
  check(ReduceOp::max, {all, other}, 2);

  // The average over one rank leaves every number as it was, which can be checked without the reference.
  const auto same =
      reduce_vectors<std::uint16_t>(type, ReduceOp::avg, {all}, {.ranks = 1, .with_zero = false});
  const int infinity = type == DataType::float16 ? 0x7c00 : 0x7f80;
  for (std::uint32_t i = 0; i < 65536; ++i) {
    if (static_cast<int>(i & 0x7fff) > infinity) continue;
    ASSERT_EQ(same[i], i);
  }
}

INSTANTIATE_TEST_SUITE_P(All, ReduceHalf, ::testing::Values(DataType::float16, DataType::bfloat16),
                         [](const auto& param_info) { return std::string(name_of(param_info.param)); });

// The results below were worked out by hand, so that they check the reference too.

TEST(ReduceByHand, HalfRoundsOnceToNearestEven) {
  on_each_target([] {
    const auto f16 = [](std::uint16_t a, std::uint16_t b, std::uint16_t c) {
      return reduce_vectors<std::uint16_t>(DataType::float16, ReduceOp::sum, {{a}, {b}, {c}}, {3, false})[0];
    };
    EXPECT_EQ(f16(0x3c00, 0x1000, 0),
              0x3c00);  // 1 plus half an ulp is a tie, and rounds down to the even mantissa
    EXPECT_EQ(f16(0x3c01, 0x1000, 0), 0x3c02);       // the same tie beside an odd mantissa rounds up
    EXPECT_EQ(f16(0x3c00, 0x1000, 0x1000), 0x3c01);  // two halves of an ulp are not lost on the way
    EXPECT_EQ(f16(0x7bff, 0x4bff, 0), 0x7bff);       // 65504 + 15.99 is still the largest number
    EXPECT_EQ(f16(0x7bff, 0x4c00, 0), 0x7c00);       // 65504 + 16 rounds to infinity
    EXPECT_EQ(f16(0x7bff, 0x7bff, 0xfbff), 0x7bff);  // only the intermediate sum exceeds the range
    EXPECT_EQ(f16(0x0001, 0x03ff, 0), 0x0400);       // subnormals add up to the smallest normal number
    EXPECT_EQ(f16(0x7c00, 0xfc00, 0), 0x7e00);       // infinity - infinity is NaN
    const auto bf16 = [](std::uint16_t a, std::uint16_t b) {
      return reduce_vectors<std::uint16_t>(DataType::bfloat16, ReduceOp::sum, {{a}, {b}}, {2, false})[0];
    };
    EXPECT_EQ(bf16(0x3f80, 0x3b80), 0x3f80);  // 1 + 2^-8, which is half an ulp
    EXPECT_EQ(bf16(0x3f81, 0x3b80), 0x3f82);
    EXPECT_EQ(bf16(0x7f7f, 0x7f7f), 0x7f80);
    EXPECT_EQ(bf16(0x7f81, 0x3f80), 0x7fc0);  // a NaN whose payload rounding would carry away
  });
}

TEST(ReduceByHand, AddsInTheOrderOfTheSources) {
  on_each_target([] {
    const std::vector<float> big{1e8f}, one{1.0f}, minus{-1e8f};
    EXPECT_EQ(reduce_vectors<float>(DataType::float32, ReduceOp::sum, {big, one, minus}, {3, false})[0],
              0.0f);
    EXPECT_EQ(reduce_vectors<float>(DataType::float32, ReduceOp::sum, {big, minus, one}, {3, false})[0],
              1.0f);
  });
}

TEST(ReduceByHand, IntegersWrapAndDivideTowardsZero) {
  on_each_target([] {
    const auto i32 = [](ReduceOp op, std::int32_t a, std::int32_t b, int ranks) {
      return reduce_vectors<std::int32_t>(DataType::int32, op, {{a}, {b}}, {ranks, false})[0];
    };
    EXPECT_EQ(i32(ReduceOp::sum, INT32_MAX, 1, 2), INT32_MIN);
    EXPECT_EQ(i32(ReduceOp::avg, -3, -4, 2), -3);
    EXPECT_EQ(i32(ReduceOp::avg, INT32_MAX, 1, 1), INT32_MIN);
    EXPECT_EQ(i32(ReduceOp::avg, INT32_MAX, 0, INT32_MAX), 1);
    EXPECT_EQ(i32(ReduceOp::avg, INT32_MAX - 1, 0, INT32_MAX), 0);
    const auto i64 = [](ReduceOp op, std::int64_t a, std::int64_t b) {
      return reduce_vectors<std::int64_t>(DataType::int64, op, {{a}, {b}}, {2, false})[0];
    };
    EXPECT_EQ(i64(ReduceOp::sum, INT64_MAX, 1), INT64_MIN);
    EXPECT_EQ(i64(ReduceOp::avg, (std::int64_t{1} << 60) + 1, 2),
              (std::int64_t{1} << 59) + 1);  // a sum in float64 would lose the 1
    const auto u8 = [](ReduceOp op, std::uint8_t a, std::uint8_t b) {
      return reduce_vectors<std::uint8_t>(DataType::uint8, op, {{a}, {b}}, {2, false})[0];
    };
    EXPECT_EQ(u8(ReduceOp::sum, 200, 100), 44);
    EXPECT_EQ(u8(ReduceOp::avg, 255, 254), 254);
    EXPECT_EQ(u8(ReduceOp::max, 200, 100), 200);
  });
}

TEST(ReduceByHand, MinAndMax) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  on_each_target([] {
    const auto f32 = [](ReduceOp op, std::vector<float> values, bool with_zero = false) {
      std::vector<std::vector<float>> sources;
      for (const float value : values) sources.push_back({value});
      return reduce_vectors<float>(DataType::float32, op, sources, {9, with_zero})[0];
    };
    EXPECT_EQ(f32(ReduceOp::min, {2, 3}), 2);
    EXPECT_EQ(f32(ReduceOp::min, {2, 3}, true), 0);
    EXPECT_EQ(f32(ReduceOp::max, {-2}, true), 0);
    EXPECT_EQ(f32(ReduceOp::max, {-2}), -2);
    for (const bool turned : {false, true}) {  // the result is the same in both orders
      EXPECT_FALSE(std::signbit(f32(ReduceOp::max, {turned ? -0.0f : 0.0f, turned ? 0.0f : -0.0f})));
      EXPECT_TRUE(std::signbit(f32(ReduceOp::min, {turned ? -0.0f : 0.0f, turned ? 0.0f : -0.0f})));
    }
    EXPECT_TRUE(std::signbit(f32(ReduceOp::min, {-0.0f}, true)));
    EXPECT_FALSE(std::signbit(f32(ReduceOp::max, {-0.0f}, true)));
    EXPECT_TRUE(std::signbit(f32(ReduceOp::max, {-0.0f, -0.0f})));
    for (const ReduceOp op : {ReduceOp::min, ReduceOp::max}) {
      EXPECT_TRUE(std::isnan(f32(op, {kNan, 1, 2})));
      EXPECT_TRUE(std::isnan(f32(op, {1, kNan, 2})));
      EXPECT_TRUE(std::isnan(f32(op, {1, 2, kNan}, true)));
    }
  });
}

TEST(ReduceByHand, ASumOfNegativeZerosIsPositiveIfARankSkipped) {
  on_each_target([] {
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::avg}) {
      for (const std::size_t sources : {1, 2, 3}) {
        const std::vector<std::vector<float>> zeros(sources, std::vector<float>(37, -0.0f));
        for (const float x : reduce_vectors<float>(DataType::float32, op, zeros, {4, true}))
          EXPECT_FALSE(std::signbit(x)) << sources;
        for (const float x :
             reduce_vectors<float>(DataType::float32, op, zeros, {static_cast<int>(sources), false}))
          EXPECT_TRUE(std::signbit(x)) << sources;
      }
    }
  });
}

TEST(ReduceByHand, NanHasOneFormUnlessCopied) {
  constexpr std::uint32_t kNegative = 0xffc12345, kQuiet = 0x7fc00000, kOne = 0x3f800000;
  on_each_target([&] {
    for (const ReduceOp op : kOps) {
      EXPECT_EQ(reduce_vectors<std::uint32_t>(DataType::float32, op, {{kNegative}, {kOne}}, {2, false})[0],
                kQuiet);
    }
    EXPECT_EQ(reduce_vectors<std::uint32_t>(DataType::float32, ReduceOp::sum, {{kNegative}}, {1, false})[0],
              kNegative);
    EXPECT_EQ(reduce_vectors<std::uint32_t>(DataType::float32, ReduceOp::sum, {{kNegative}}, {2, true})[0],
              kQuiet);
    EXPECT_EQ(reduce_vectors<std::uint32_t>(DataType::float32, ReduceOp::avg, {{kNegative}}, {1, false})[0],
              kQuiet);
    EXPECT_EQ(reduce_vectors<std::uint32_t>(DataType::float32, ReduceOp::min, {{kNegative}}, {2, true})[0],
              kQuiet);
  });
}

TEST(KernelTargets, BestComesFirstAndIsActive) {
  auto names = kernel_targets();
  // Highway 1.0 lists these two on CPUs with vectors of their length, and chooses SVE2 all the same.
  std::erase_if(names, [](const std::string& name) {
    return active_kernel_target() == "SVE2" && (name == "SVE2_128" || name == "SVE_256");
  });
  ASSERT_FALSE(names.empty());
  EXPECT_EQ(active_kernel_target(), names.front());
}

}  // namespace
}  // namespace nzcl
