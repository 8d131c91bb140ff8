#include "runtime/kernels/narrow.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "each_target.h"
#include "guarded.h"
#include "reference.h"

namespace nzcl {
namespace {

using test::Guarded;
using test::on_each_target;

std::uint16_t narrowed(DataType type, float value) {
  return type == DataType::float16 ? test::float_to_half(value) : test::float_to_bfloat16(value);
}

float widened(DataType type, std::uint16_t bits) {
  const float value = type == DataType::float16 ? test::half_to_float(bits) : test::bfloat16_to_float(bits);
  return std::isnan(value) ? std::numeric_limits<float>::quiet_NaN() : value;
}

class Narrow : public ::testing::TestWithParam<DataType> {};

// Any bits, and what lies next to the middle between two neighbours of the narrow type.
TEST_P(Narrow, RoundsLikeAScalarLoop) {
  std::mt19937_64 random(1);
  std::vector<float> values;
  for (int i = 0; i < 40'000; ++i)
    values.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(random())));
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const auto exact = std::bit_cast<std::uint32_t>(widened(GetParam(), static_cast<std::uint16_t>(bits)));
    for (const std::uint32_t more : {0x0u, 0x0fffu, 0x1000u, 0x1001u, 0x7fffu, 0x8000u, 0x8001u})
      values.push_back(std::bit_cast<float>(exact + more));
  }
  std::vector<std::uint16_t> expected;
  for (const float value : values) expected.push_back(narrowed(GetParam(), value));
  on_each_target([&] {
    std::vector<std::uint16_t> result(values.size());
    narrow(GetParam(), values.data(), values.size(), result.data());
    ASSERT_EQ(result, expected);
  });
}

TEST_P(Narrow, WidensEveryValue) {
  std::vector<std::uint16_t> values(65536);
  std::vector<std::uint32_t> expected(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<std::uint16_t>(i);
    expected[i] = std::bit_cast<std::uint32_t>(widened(GetParam(), values[i]));
  }
  on_each_target([&] {
    std::vector<std::uint32_t> result(values.size());
    widen(GetParam(), values.data(), values.size(), reinterpret_cast<float*>(result.data()));
    ASSERT_EQ(result, expected);
  });
}

TEST_P(Narrow, TouchesNothingBeyondTheEnd) {
  on_each_target([&] {
    for (std::size_t count = 0; count <= 70; ++count) {
      const Guarded wide(4 * count), thin(2 * count), again(4 * count);
      auto* const values = reinterpret_cast<float*>(wide.data());
      for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(i) - 20;
      narrow(GetParam(), values, count, reinterpret_cast<std::uint16_t*>(thin.data()));
      widen(GetParam(), reinterpret_cast<const std::uint16_t*>(thin.data()), count,
            reinterpret_cast<float*>(again.data()));
      ASSERT_TRUE(std::ranges::equal(wide.bytes(), again.bytes())) << count;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Types, Narrow, ::testing::Values(DataType::float16, DataType::bfloat16),
                         [](const auto& param_info) { return std::string(name_of(param_info.param)); });

}  // namespace
}  // namespace nzcl
