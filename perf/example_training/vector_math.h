// The three loops over one row that training spends its time in. "omp simd" lets the compiler reorder the
// additions of a dot product, which it must not do on its own; nothing of OpenMP is linked.
#pragma once

#include <cstddef>
#include <span>

namespace train {

inline float dot(std::span<const float> a, std::span<const float> b) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

/// to += factor * from
inline void add_scaled(std::span<float> to, float factor, std::span<const float> from) {
#pragma omp simd
  for (std::size_t i = 0; i < to.size(); ++i) to[i] += factor * from[i];
}

}  // namespace train
