// What an aggregator says when no sum can be right any more, wherever it sums.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>

namespace nzcl::engine::slot_pool {

inline std::string other_operations_text(int first, int other) {
  return fmt::format(
      "ranks {} and {} have called different operations: their types, sizes, block sizes, reductions, "
      "expected densities or numbers of operations differ",
      first, other);
}

inline std::string cannot_be_text(int rank, std::uint64_t values, int exponent, std::uint32_t piece) {
  return fmt::format("rank {} sent {} values and exponent {} for piece {}, which cannot be", rank, values,
                     exponent, piece);
}

}  // namespace nzcl::engine::slot_pool
