// How a tensor is cut into slices, and which owner gets which slice. This is a pure function of what all
// ranks agree on, so no messages are needed for it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "runtime/base/divide.h"
#include "runtime/plan/engine_config.h"
#include "runtime/wire/message.h"
#include "runtime/wire/tile.h"

namespace nzcl::engine {

/// An owner is one lane of one aggregator. Owner o is lane o % lanes of aggregator o / lanes.
struct LayoutRequest {
  std::uint64_t epoch = 0;
  std::uint64_t count = 0;  // elements, of the largest chunk if there are chunks
  std::uint64_t element_bytes = 4;
  std::uint64_t block_elems = 256;
  std::uint32_t owners = 1;
  std::uint64_t least_slice_bytes = kLeastSliceBytes;  // of a small tensor, if slice_bytes is 0
  std::uint64_t slice_bytes = 0;    // wanted dense bytes of a slice; 0: chosen from the tensor's size
  std::uint64_t ahead_bytes = 0;    // see EngineConfig::ahead_bytes
  std::uint64_t slot_bytes = 0;     // a slice's bitmap takes at most half of a slot
  std::uint64_t express_bytes = 0;  // the most bytes of a tensor and its bitmap in one express slice
  /// The priority whose channels an express slice takes.
  wire::Priority express_priority = wire::Priority::express;
  /// Tensors with blocks of fewer bytes are cut into tiles, unless they are express. 0: none are.
  std::uint64_t tile_block_bytes = 0;
  /// Whether the units of a tile are single elements instead of whole blocks.
  bool single_elements = false;
  /// Whether contributions are coded, so that few bytes are left of each slice.
  bool coded = false;
  /// The result is packed, and so contributions are streams: nothing has to be done for what is not in them.
  /// However large the tensor is, it gets a bounded number of slices then.
  bool packed = false;
  /// About how many bytes each of these streams has.
  std::uint64_t packed_bytes = 0;
  /// The most slices that an owner of tiles gets then.
  std::uint64_t packed_slices = kTiledSlicesPerOwner;
  /// Tiles are told in lists if merging these takes at most one step for so many of their units.
  std::uint64_t units_per_list_step = kUnitsPerListStep;
  /// The most bytes that a value of a tile takes in a message. 0: those of an element.
  std::uint64_t tile_value_bytes = 0;
  /// The priority whose channels all other slices take.
  wire::Priority priority = wire::Priority::bulk;

  // --- Of collectives other than allreduce.
  bool meets = false;        // slice 0 is the meeting (see SliceLayout)
  bool only_meets = false;   // there are no other slices: the tensor is exchanged by other operations
  std::uint32_t chunks = 1;  // each rank has one, or there is a single one
  /// Elements of the chunks before each chunk and, at the end, of all; it must outlive the layout. If it is
  /// nullptr, all chunks have `chunk_count` elements. An aggregator knows only the chunk of the slice that it
  /// asks for.
  const std::uint64_t* begins = nullptr;
  std::uint64_t chunk_count = 0;
  /// Which owners the slices are dealt to. `lanes` is the number of lanes of an aggregator.
  enum class Owners : std::uint8_t {
    all,
    of_chunk,  // those of aggregator number c for chunk c
    only,      // those of `aggregator`
    all_but,   // all but those of `aggregator`
  };
  Owners dealt_to = Owners::all;
  std::uint32_t aggregator = 0, lanes = 1;
};

/// Slices are dealt to owners in rows of `owners` consecutive slices. Every row is rotated by a hash of epoch
/// and row. So each owner gets one slice of every row, and neither a hot region nor a stride of the tensor
/// lands on one owner. The owner of slice 0 depends on the epoch alone, so that ranks which disagree about an
/// operation still meet at one owner and find out.
///
/// In collectives other than allreduce, the owners of slices depend on the request, so ranks that disagree
/// would not meet at any owner. These collectives have one more slice in front, number 0: the *meeting*. It
/// has no blocks, and its owner depends on the epoch alone. An allreduce by hierarchy, whose tensor other
/// operations exchange, has no other slice. Collectives with chunks are cut chunk by chunk.
/// All chunks have as many slices as the largest one, and where another one has ended its slices have no
/// blocks.
///
/// The slices of a *tiled* tensor, whose blocks are small, are cut further into tiles of at most
/// kMostSliceElements elements. A tile holds whole blocks, and in its dense form it fits a message. What it
/// says to be there, its *units*, are blocks; or single elements where values are coded, because compressors
/// select elements. A tile has at least 64 blocks, unless the result is packed and they are too large for
/// that.
class SliceLayout {
 public:
  explicit SliceLayout(const LayoutRequest& request);
  /// The layout of the same tensor in another operation.
  SliceLayout at_epoch(std::uint64_t epoch) const {
    SliceLayout other = *this;
    other.epoch_ = epoch;
    return other;
  }

  std::uint64_t tensor_bytes() const { return tensor_bytes_; }  // of all chunks
  std::uint64_t block_bytes() const { return block_bytes_; }
  std::uint64_t blocks() const { return blocks_; }
  std::uint64_t slices() const { return slices_; }  // at least 1, also for an empty tensor
  std::uint64_t slice_bytes() const { return slice_blocks_ * block_bytes_; }
  std::uint64_t slice_blocks() const { return slice_blocks_; }  // blocks of every slice but the last ones
  /// Whether the tensor is one slice that travels in one message.
  bool express() const { return express_; }
  wire::Priority priority() const { return express_ ? express_priority_ : priority_; }

  /// Returns true if the slice is the one without blocks in which all ranks meet, to find out whether they
  /// agree about the operation. See the class comment.
  bool is_meeting(std::uint64_t slice) const { return meets_ && slice == 0; }
  /// The chunk that a slice belongs to.
  std::uint32_t chunk_of(std::uint64_t slice) const {
    if (chunks_ == 1 || slice < meets_) return 0;
    return static_cast<std::uint32_t>((slice - meets_) / chunk_slices_);
  }
  std::uint32_t chunks() const { return chunks_; }
  /// The first slice of a chunk, of which each has as many. `chunk` may be chunks(), for the end of the last.
  std::uint64_t first_slice_of(std::uint32_t chunk) const { return meets_ + chunk * chunk_slices_; }
  /// Elements, and blocks, of the chunks before this one. `chunk` may be chunks(), which asks for all.
  std::uint64_t chunk_begin(std::uint32_t chunk) const {
    return begins_ != nullptr ? begins_[chunk] : chunk * chunk_count_;
  }
  std::uint64_t chunk_elements(std::uint32_t chunk) const {
    return begins_ != nullptr ? begins_[chunk + 1] - begins_[chunk] : chunk_count_;
  }
  std::uint64_t blocks_before(std::uint32_t chunk) const;

  /// The number of the slice's first block within its chunk.
  std::uint64_t first_block(std::uint64_t slice) const {
    if (slice < meets_) return 0;
    const std::uint64_t within = chunks_ == 1 ? slice - meets_ : (slice - meets_) % chunk_slices_;
    return within * slice_blocks_;
  }
  /// Blocks of this slice.
  std::uint64_t blocks_of(std::uint64_t slice) const {
    if (is_meeting(slice)) return 0;
    const std::uint64_t all = chunks_ == 1 ? blocks_ : blocks_in(chunk_elements(chunk_of(slice)));
    const std::uint64_t first = first_block(slice);
    return first < all ? std::min(slice_blocks_, all - first) : 0;
  }
  std::uint64_t words_per_slice() const { return (slice_blocks_ + 63) / 64; }
  std::uint64_t words_of(std::uint64_t slice) const { return (blocks_of(slice) + 63) / 64; }
  /// Offset of a slice's block in its chunk, in bytes.
  std::uint64_t offset_of(std::uint64_t slice, std::uint64_t block) const {
    return (first_block(slice) + block) * block_bytes_;
  }
  /// Bytes of `n` blocks of a slice from `block` on. Only a chunk's last block may be shorter than the
  /// others.
  std::uint64_t bytes_of_blocks(std::uint64_t slice, std::uint64_t block, std::uint64_t n) const {
    const std::uint64_t begin = offset_of(slice, block);
    const std::uint64_t all = chunks_ == 1 ? tensor_bytes_ : chunk_elements(chunk_of(slice)) * element_bytes_;
    return begin < all && !is_meeting(slice) ? std::min(begin + n * block_bytes_, all) - begin : 0;
  }

  bool tiled() const { return tile_blocks_ > 0; }
  /// Elements of every tile but the tensor's last one: of whole blocks.
  std::uint64_t tile_elements() const { return tile_blocks_ * block_elements(); }
  std::uint64_t block_elements() const { return block_bytes_ / element_bytes_; }
  std::uint64_t element_bytes() const { return element_bytes_; }
  std::uint64_t tile_blocks() const { return tile_blocks_; }
  /// Tiles of a slice. Precondition of this and of the following functions: tiled().
  std::uint64_t tiles_of(std::uint64_t slice) const {
    return (blocks_of(slice) + tile_blocks_ - 1) / tile_blocks_;
  }
  /// A slice's tile, counted over the whole tensor, and the number of all tiles.
  std::uint64_t tile_number(std::uint64_t slice, std::uint64_t tile) const {
    return slice * slice_tiles_ + tile;
  }
  std::uint64_t slice_of_tile(std::uint64_t number) const { return number / slice_tiles_; }
  /// The place of a tile within its slice.
  std::uint64_t place_in_slice(std::uint64_t number) const { return number % slice_tiles_; }
  std::uint64_t tiles() const { return (blocks_ + tile_blocks_ - 1) / tile_blocks_; }
  /// First element of a tile that is counted over the whole tensor, and how many it has.
  std::uint64_t tile_begin(std::uint64_t number) const { return number * tile_elements(); }
  std::uint64_t elements_of_tile(std::uint64_t number) const {
    return std::min(tile_elements(), tensor_bytes_ / element_bytes_ - tile_begin(number));
  }
  /// Elements of a unit of a tile, and units of a block.
  std::uint64_t unit_elements() const { return unit_elements_; }
  std::uint64_t block_units() const { return block_elements() / unit_elements_; }
  /// Units of every tile but the tensor's last one.
  std::uint64_t tile_units() const { return tile_blocks_ * block_units(); }
  /// How many tiles from this one on may be told in lists: all, but for one whose last unit is shorter than
  /// the others, because a list has as many bytes for each of its units.
  std::uint64_t listable_tiles(std::uint64_t number) const {
    return tiles() - number - (tensor_bytes_ / element_bytes_ % unit_elements_ != 0 ? 1 : 0);
  }
  /// See LayoutRequest::units_per_list_step.
  std::uint64_t units_per_list_step() const { return units_per_list_step_; }
  wire::TileShape shape_of_tile(std::uint64_t number) const {
    return {elements_of_tile(number), unit_elements_};
  }
  /// Units of so many tiles in a row.
  std::uint64_t units_of_tiles(std::uint64_t number, std::uint64_t tiles) const {
    return (tiles - 1) * tile_units() + shape_of_tile(number + tiles - 1).units();
  }

  std::uint32_t owners() const { return owners_; }
  std::uint32_t owner(std::uint64_t slice) const;
  /// Returns true if lane number `lane` of any aggregator owns a slice, where each aggregator has `lanes`
  /// lanes.
  bool on_lane(std::uint32_t lane, std::uint32_t lanes) const;
  /// Number of slices that `owner` has, and its k-th one in ascending order.
  std::uint64_t owned(std::uint32_t owner) const;
  std::uint64_t owned_slice(std::uint32_t owner, std::uint64_t k) const;

 private:
  /// The owners that a chunk's slices are dealt to: `size` owners, counted from owner `begin` on, where the
  /// `hole` owners from `hole_at` on are left out. The slices are numbered from `first`.
  struct Pool {
    std::uint32_t begin = 0, size = 1, hole_at = 0, hole = 0;
    std::uint64_t first = 0, slices = 0;
  };
  Pool pool_of(std::uint32_t chunk) const;
  /// The pool that the owner is in, or one without slices.
  Pool pool_with(std::uint32_t owner, std::uint32_t& place) const;
  std::uint64_t blocks_in(std::uint64_t elements) const {
    return ceil_div(elements * element_bytes_, block_bytes_);
  }
  std::uint32_t rotation(std::uint64_t row, std::uint32_t size) const;
  std::uint32_t meeting_owner() const { return rotation(0, owners_); }
  /// Position within a row of the slice that belongs to number `place` of `size` owners.
  std::uint32_t column(std::uint32_t place, std::uint32_t size, std::uint64_t row) const;

  void cut_into_tiles(const LayoutRequest& request);

  std::uint64_t epoch_, element_bytes_, tensor_bytes_, block_bytes_, blocks_, slice_blocks_, slices_;
  std::uint64_t tile_blocks_ = 0;  // 0: not tiled
  std::uint64_t slice_tiles_ = 0;  // of every slice but the last one, if it is tiled
  std::uint64_t unit_elements_ = 1;
  std::uint64_t units_per_list_step_;
  std::uint32_t owners_, meets_, chunks_, aggregator_, lanes_;
  std::uint64_t chunk_slices_, chunk_count_;
  const std::uint64_t* begins_;
  LayoutRequest::Owners dealt_to_;
  bool express_;
  wire::Priority express_priority_, priority_;
};

/// Returns the layout of one operation. Workers and aggregators both call this, so that they come to the same
/// one. A worker gives `begins` if its chunks differ in size (LayoutRequest::begins); an aggregator gets the
/// layout as far as it concerns the chunk that the record is about.
SliceLayout layout_of(const EngineConfig& config, std::uint64_t epoch, const wire::OperationRecord& record,
                      const std::uint64_t* begins = nullptr);

/// Returns true if the tensors of two records are cut into the same slices. It is all that has to agree if a
/// rank has refused its request, because nothing is summed then. That rank may not know whether it wants its
/// result packed, so where this makes no difference it need not agree.
bool same_layout(const EngineConfig& config, const wire::OperationRecord& a, const wire::OperationRecord& b);

}  // namespace nzcl::engine
