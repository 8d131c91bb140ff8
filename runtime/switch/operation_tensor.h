// The part of an operation that one owner sums, as the pieces of a tensor.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/operation/operation.h"
#include "runtime/switch/pool.h"
#include "runtime/switch/tensor.h"

namespace nzcl::engine::slot_pool {

/// Whether this exchange can sum such an operation. All ranks come to the same answer.
bool can_sum(const wire::OperationRecord& record);

/// Made once and used for one operation after another. Only the thread that drives the lane calls it.
class OperationTensor final : public Tensor {
 public:
  explicit OperationTensor(const Pool& pool);

  /// Begins to stand for the slices of `operation` that `owner` has. Precondition: there is one, and the
  /// operation has not been refused.
  void bind(Operation& operation, std::uint32_t owner);

  std::uint32_t pieces() const override { return pieces_; }
  std::uint32_t values(std::uint32_t piece, std::uint64_t blocks) const override;
  std::uint32_t shape() const override { return shape_; }
  bool look_ahead(std::uint32_t from, std::uint32_t step, Ahead& ahead) override;
  Filled fill(std::uint32_t piece, std::uint8_t exponent, std::span<std::int32_t> to) override;
  void store(std::uint32_t piece, std::uint8_t exponent, std::uint64_t blocks,
             std::span<const std::int32_t> sums) override;
  void advanced(std::uint32_t slot, std::uint32_t position) override;

 private:
  /// Where a piece lies: some blocks of a slice, or a part of one block.
  struct Place {
    std::uint64_t slice = 0, first_block = 0;
    std::uint32_t blocks = 0;
    std::uint64_t offset = 0;  // in bytes, from the beginning of the tensor
    std::uint32_t elements = 0;
  };
  Place locate(std::uint32_t piece) const;
  std::uint64_t pieces_in(std::uint64_t blocks) const;
  bool holds(const Place& place) const;
  std::uint8_t exponent_of(const Place& place);
  /// Elements of the piece's i-th block.
  std::uint32_t block_elements(const Place& place, std::uint32_t i) const;
  /// Values that a packet has of each of the piece's blocks. The tensor's last block may have fewer elements
  /// than its neighbours, and is filled up with zeros.
  std::uint32_t block_values(const Place& place) const;
  std::span<const float> as_floats(const std::byte* from, std::uint32_t count);
  bool to_integers(const std::byte* from, std::uint32_t count, std::uint8_t exponent, std::int32_t* to);
  void from_integers(const std::int32_t* from, std::uint32_t count, std::uint8_t exponent, std::byte* to);
  int shift_of(std::uint8_t exponent) const;
  std::uint32_t end_of_slice(std::uint64_t k) const;
  void count_behind();

  const std::uint32_t piece_elements_;
  const bool whole_;              // Pool::zeros
  const int workers_, headroom_;  // bits that a sum of all ranks' values takes beyond one rank's
  Operation* operation_ = nullptr;
  std::uint32_t owner_ = 0, pieces_ = 0, shape_ = 0;
  DataType type_ = DataType::float32;
  std::uint32_t element_bytes_ = 4;
  std::uint64_t owned_ = 0;             // slices
  std::uint32_t blocks_per_piece_ = 1;  // if blocks are small
  std::uint32_t parts_ = 1;             // of a block that is larger than a piece
  std::uint32_t part_elements_ = 0;
  std::uint64_t pieces_per_slice_ = 1;
  // A slice is done when every slot has come past its end.
  std::uint64_t slices_done_ = 0;
  std::uint32_t behind_ = 0;              // slots that have not come past the end of slice `slices_done_`
  std::vector<std::uint32_t> positions_;  // of the slots; pieces_ + 1 at the very end
  std::vector<float> floats_;             // one piece's values
};

}  // namespace nzcl::engine::slot_pool
