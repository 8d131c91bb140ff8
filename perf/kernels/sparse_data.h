// Random data for the benchmarks of the kernels for single elements.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace perf::kernels {

/// Ascending positions below `elements`, each with the same probability. With density 1 all of them.
inline std::vector<std::uint64_t> random_positions(std::size_t elements, double density, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::uint64_t> positions;
  if (density <= 0) return positions;
  std::geometric_distribution<std::uint64_t> gap(density < 1 ? density : 0.5);
  for (std::uint64_t at = density < 1 ? gap(random) : 0; at < elements;
       at += 1 + (density < 1 ? gap(random) : 0))
    positions.push_back(at);
  return positions;
}

}  // namespace perf::kernels
