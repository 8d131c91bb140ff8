// What the simulated ranks hold, and the plain sum of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace perf::scale {

enum class Overlap : std::uint8_t { random, all };  // each rank draws its blocks, or all have the same

/// float32 tensors with small whole numbers, so that sums are exact in every order. All ranks' values lie in
/// one piece of memory, each rank's from another place on, because a thousand tensors would need too much.
class Tensors {
 public:
  struct Shape {
    int ranks = 1;
    std::uint64_t elements = 0, block_elements = 256;
    double density = 1;
    Overlap overlap = Overlap::random;
    std::uint64_t seed = 1;
  };
  explicit Tensors(const Shape& shape);

  std::uint64_t blocks() const;
  std::span<float> all_values() { return values_; }
  const float* values(int rank) const { return values_.data() + static_cast<std::size_t>(rank) * kStride; }
  /// Which blocks the rank contributes. The values of the others do not count.
  std::vector<std::uint64_t> bitmap(int rank) const;
  bool is_dense() const { return shape_.density >= 1; }
  std::uint64_t bytes() const { return shape_.elements * sizeof(float); }
  /// Share of the blocks that some of these ranks have.
  double union_density(std::span<const int> ranks) const;

  /// How many elements of a rank's result differ from the sum, and whether its bitmap does.
  std::uint64_t wrong(std::span<const float> result, std::span<const std::uint64_t> bitmap) const;

 private:
  static constexpr std::size_t kStride = 64;  // values between the beginnings of two ranks' tensors
  bool has(int rank, std::uint64_t block) const;
  void add(int rank);

  const Shape shape_;
  std::vector<float> values_, sum_;
  std::vector<std::uint64_t> bits_;  // blocks that any rank has
};

}  // namespace perf::scale
