// Codes the results of a compressed allreduce, of the slices that this rank owns.
#pragma once

#include <cstdint>
#include <optional>

#include "nzcl/compress.h"
#include "runtime/compress/qsgd.h"
#include "runtime/compress/tensor_state.h"
#include "runtime/operation/result_coder.h"
#include "runtime/wire/tile.h"

namespace nzcl::comm {

/// Rounds sums as the compressor's ResultCodec says, and keeps the errors in the state, which outlives the
/// operation. It is made for one step of the state.
class CodedResults : public engine::ResultCoder {
 public:
  /// Precondition: results are coded, and the step has begun.
  explicit CodedResults(compress::TensorState& state);

  std::uint32_t parameter() const override;
  std::uint64_t bytes(std::size_t count) const override;
  void code(const engine::SummedTile& tile, std::byte* to) override;

 private:
  void code_levels(const engine::SummedTile& tile, std::byte* to) const;

  compress::TensorState& state_;
  const std::uint64_t step_;
  DataType narrow_ = DataType::bfloat16;
  std::optional<compress::QsgdFormat> levels_;  // in place of narrower floats
};

/// What a compressed allreduce says of its values.
wire::ValueRule value_rule_of(const Compressor& compressor);

}  // namespace nzcl::comm
