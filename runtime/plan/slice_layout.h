// How a tensor is cut into slices, and which owner gets which slice. This is a pure function of what all
// ranks agree on, so no messages are needed for it.
#pragma once

#include <cstdint>

#include "runtime/plan/engine_config.h"
#include "runtime/wire/message.h"

namespace nzcl::engine {

/// An owner is one lane of one aggregator. Owner o is lane o % lanes of aggregator o / lanes.
struct LayoutRequest {
  std::uint64_t epoch = 0;
  std::uint64_t count = 0;  // elements
  std::uint64_t element_bytes = 4;
  std::uint64_t block_elems = 256;
  std::uint32_t owners = 1;
  std::uint64_t slice_bytes = 0;    // wanted dense bytes of a slice; 0: chosen from the tensor's size
  std::uint64_t ahead_bytes = 0;    // see EngineConfig::ahead_bytes
  std::uint64_t slot_bytes = 0;     // a slice's bitmap takes at most half of a slot
  std::uint64_t express_bytes = 0;  // the most bytes of a tensor and its bitmap in one express slice
};

/// Slices are dealt to owners in rows of `owners` consecutive slices. Every row is rotated by a hash of epoch
/// and row. So each owner gets one slice of every row, and neither a hot region nor a stride of the tensor
/// lands on one owner. The owner of slice 0 depends on the epoch alone, so that ranks which disagree about an
/// operation still meet at one owner and find out.
class SliceLayout {
 public:
  explicit SliceLayout(const LayoutRequest& request);

  std::uint64_t tensor_bytes() const { return tensor_bytes_; }
  std::uint64_t block_bytes() const { return block_bytes_; }
  std::uint64_t blocks() const { return blocks_; }
  std::uint64_t slices() const { return slices_; }  // at least 1, also for an empty tensor
  std::uint64_t slice_bytes() const { return slice_blocks_ * block_bytes_; }
  std::uint64_t slice_blocks() const { return slice_blocks_; }  // blocks of every slice but the last
  bool express() const { return express_; }

  std::uint64_t first_block(std::uint64_t slice) const { return slice * slice_blocks_; }
  std::uint64_t blocks_of(std::uint64_t slice) const;  // blocks of this slice
  std::uint64_t words_per_slice() const { return (slice_blocks_ + 63) / 64; }
  std::uint64_t words_of(std::uint64_t slice) const { return (blocks_of(slice) + 63) / 64; }
  /// Offset of a slice's block in the tensor, in bytes.
  std::uint64_t offset_of(std::uint64_t slice, std::uint64_t block) const {
    return (first_block(slice) + block) * block_bytes_;
  }
  /// Bytes of `n` blocks of a slice from `block` on. Only the tensor's last block may be shorter than the
  /// others.
  std::uint64_t bytes_of_blocks(std::uint64_t slice, std::uint64_t block, std::uint64_t n) const;

  std::uint32_t owners() const { return owners_; }
  std::uint32_t owner(std::uint64_t slice) const;
  /// Returns true if lane number `lane` of any aggregator owns a slice, where each aggregator has `lanes`
  /// lanes.
  bool on_lane(std::uint32_t lane, std::uint32_t lanes) const;
  /// Number of slices that `owner` has, and its k-th one in ascending order.
  std::uint64_t owned(std::uint32_t owner) const;
  std::uint64_t owned_slice(std::uint32_t owner, std::uint64_t k) const {
    return k * owners_ + column(owner, k);
  }

 private:
  /// Position of the owner's slice within a row.
  std::uint32_t column(std::uint32_t owner, std::uint64_t row) const;

  std::uint64_t epoch_, tensor_bytes_, block_bytes_, blocks_, slice_blocks_, slices_;
  std::uint32_t owners_;
  bool express_;
};

/// Returns the layout of one operation. Workers and aggregators both call this, so that they come to the same
/// one.
SliceLayout layout_of(const EngineConfig& config, std::uint64_t epoch, const wire::OperationRecord& record);

}  // namespace nzcl::engine
