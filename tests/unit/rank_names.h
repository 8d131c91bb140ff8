// Names of members, as failures have them.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace nzcl::test {

inline std::vector<std::string> rank_names(std::size_t count) {
  std::vector<std::string> all;
  for (std::size_t i = 0; i < count; ++i) all.push_back("rank " + std::to_string(i));
  return all;
}

}  // namespace nzcl::test
