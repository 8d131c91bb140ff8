// Helpers of the tests of compressed allreduces: gradients, their bits, and what a call was refused for.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "nzcl/error.h"
#include "tests/system/ranks.h"
#include "tests/unit/compressor_cases.h"

namespace nzcl::test {

/// More than two slices of a compressed tensor.
inline constexpr std::uint64_t kElements = 140'001;

inline Setting of_ranks(int ranks) {
  Setting setting;
  setting.ranks = ranks;
  return setting;
}

inline std::vector<float> gradient_of(int rank, unsigned step) {
  return normal_values(kElements, static_cast<unsigned>(rank) * 1000 + step);
}

/// All NaNs have the same bits here.
inline std::vector<std::uint32_t> bits(std::span<const float> values) {
  std::vector<std::uint32_t> all;
  for (const float v : values)
    all.push_back(std::bit_cast<std::uint32_t>(std::isnan(v) ? std::numeric_limits<float>::quiet_NaN() : v));
  return all;
}

/// What the error of `call` says.
inline std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& e) {
    return e.what();
  }
  return "not refused";
}

}  // namespace nzcl::test
