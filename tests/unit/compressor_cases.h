// What tests of compressors have in common: gradients, and names of cases.
#pragma once

#include <gtest/gtest.h>

#include <cctype>
#include <cstddef>
#include <random>
#include <string>
#include <vector>

namespace nzcl::test {

/// Normally distributed values, the same ones for the same seed.
inline std::vector<float> normal_values(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> values(count);
  for (float& v : values) v = static_cast<float>(std::normal_distribution<double>()(random));
  return values;
}

/// Makes a name that GoogleTest takes of a compressor's text.
inline std::string compressor_name(const ::testing::TestParamInfo<const char*>& info) {
  std::string name = info.param;
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return name;
}

}  // namespace nzcl::test
