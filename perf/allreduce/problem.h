// What the ranks put in, and what must come out. Every rank can make the input of every other rank, so each
// checks its own result against a plain sum.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "nzcl/types.h"
#include "perf/allreduce/settings.h"

namespace perf::allreduce {

struct Problem {
  nzcl::DataType type = nzcl::DataType::float32;
  nzcl::ReduceOp op = nzcl::ReduceOp::sum;
  std::uint64_t count = 0, block = 256;
  double density = 1;
  Overlap overlap = Overlap::random;
  int ranks = 1;

  std::uint64_t bytes() const { return count * nzcl::element_bytes(type); }
  std::uint64_t blocks() const { return (count + block - 1) / block; }
  std::uint64_t block_bytes() const { return block * nzcl::element_bytes(type); }
  bool holds(int rank, std::uint64_t block_index) const;
  /// Values are small whole numbers and never zero, so that the sum of up to 16 ranks is exact in every type
  /// and order.
  static int value(int rank, std::uint64_t element) {
    return 1 + static_cast<int>((element * 5 + static_cast<std::uint64_t>(rank) * 3) % 7);
  }

  void fill(int rank, std::span<std::byte> data) const;
  std::vector<std::uint64_t> bitmap(int rank) const;
  /// The indices of the blocks that `rank` holds, ascending.
  std::vector<std::int64_t> indices(int rank) const;
  /// Copies the blocks with these indices out of `tensor`, one behind the other. Each takes the room of a
  /// whole block in `values`, the last of the tensor too.
  void pack(std::span<const std::byte> tensor, std::span<const std::int64_t> indices,
            std::span<std::byte> values) const;
  /// The other way round: `tensor` becomes the blocks and zeros elsewhere. Returns the number of indices that
  /// are not in ascending order or not in the tensor; their blocks are left out.
  std::uint64_t unpack(std::span<const std::byte> values, std::span<const std::int64_t> indices,
                       std::span<std::byte> tensor) const;
  /// The share of the blocks that at least one rank holds, and the share that this rank holds.
  double union_density() const;
  double own_density(int rank) const;
  /// The number of elements of `data` that are not the expected ones.
  std::uint64_t wrong(std::span<const std::byte> data) const { return wrong(data, 0, count, -1); }
  /// The same for the elements from `first` to before `end`, which are all that `data` holds. They are the
  /// sum over all ranks, or the elements of rank `from` if that is not -1.
  std::uint64_t wrong(std::span<const std::byte> data, std::uint64_t first, std::uint64_t end,
                      int from) const;
};

}  // namespace perf::allreduce
