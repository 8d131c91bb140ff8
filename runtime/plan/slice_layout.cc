#include "runtime/plan/slice_layout.h"

#include <algorithm>
#include <bit>

#include "nzcl/types.h"
#include "runtime/base/divide.h"
#include "runtime/base/mix.h"
#include "runtime/plan/partial_type.h"

namespace nzcl::engine {
namespace {

/// Returns how many bytes a slice should have so that scanning, sending and summing overlap.
std::uint64_t pipelined_slice_bytes(const LayoutRequest& r, std::uint64_t tensor_bytes) {
  if (r.ahead_bytes == 0) {  // over links
    const std::uint64_t slices = std::max(r.owners * kWindow, kSlicesOverLinks);
    return std::clamp(ceil_div(tensor_bytes, slices), kLeastPipelinedSliceBytes, kMaxSliceBytes);
  }
  const std::uint64_t most =
      std::clamp(r.ahead_bytes / (kLeastWindow * r.owners), kLeastCachedSliceBytes, kMaxSliceBytes);
  return std::clamp(ceil_div(tensor_bytes, r.owners * kSlicesPerOwner), kLeastPipelinedSliceBytes, most);
}

/// The least size of a slice: that of a packed result grows with the tensor.
std::uint64_t least_bytes_of_packed(const LayoutRequest& r, std::uint64_t tensor_bytes) {
  return r.packed ? ceil_div(tensor_bytes, r.owners * kMostPackedSlicesPerOwner) : 0;
}

std::uint64_t wanted_tiled_slice_bytes(const LayoutRequest& r, std::uint64_t tensor_bytes) {
  if (r.slice_bytes > 0) return r.slice_bytes;
  if (r.packed) {
    const std::uint64_t messages = r.packed_bytes / r.owners / kFullMessageBytes;
    const std::uint64_t slices = r.owners * std::clamp<std::uint64_t>(messages, 1, r.packed_slices);
    return std::max(ceil_div(tensor_bytes, slices), r.least_slice_bytes);
  }
  const std::uint64_t slices = r.owners * (r.coded ? kCodedSlicesPerOwner : kTiledSlicesPerOwner);
  return std::clamp(ceil_div(tensor_bytes, slices), r.least_slice_bytes, kMaxTiledSliceBytes);
}

std::uint64_t choose_slice_blocks(const LayoutRequest& r, std::uint64_t tensor_bytes,
                                  std::uint64_t block_bytes) {
  const std::uint64_t shared = std::max(ceil_div(tensor_bytes, r.owners), r.least_slice_bytes);
  const std::uint64_t wanted = r.slice_bytes
                                   ? r.slice_bytes
                                   : std::max(std::min(pipelined_slice_bytes(r, tensor_bytes), shared),
                                              least_bytes_of_packed(r, tensor_bytes));
  std::uint64_t blocks = std::max<std::uint64_t>(1, wanted / block_bytes);
  blocks = std::max<std::uint64_t>(1, std::min(blocks, r.slot_bytes / 2 * 8));
  // A large slice is cut to whole words of bits, so that the bitmaps of all slices together are that of the
  // tensor. A small slice would lose too much by that.
  if (blocks >= 64) blocks -= blocks % 64;
  return blocks;
}

}  // namespace

SliceLayout::SliceLayout(const LayoutRequest& r)
    : epoch_(r.epoch),
      element_bytes_(r.element_bytes),
      tensor_bytes_(0),
      block_bytes_(std::min(r.block_elems, std::max<std::uint64_t>(r.count, 1)) * r.element_bytes),
      blocks_(0),
      units_per_list_step_(r.units_per_list_step),
      owners_(r.owners),
      meets_(r.meets ? 1 : 0),
      chunks_(r.chunks),
      aggregator_(r.aggregator),
      lanes_(r.lanes),
      chunk_count_(r.chunks > 1 || r.meets ? r.chunk_count : r.count),
      begins_(r.begins),
      dealt_to_(r.dealt_to),
      express_priority_(r.express_priority),
      priority_(r.priority) {
  tensor_bytes_ = chunk_begin(chunks_) * element_bytes_;
  blocks_ = blocks_before(chunks_);
  const std::uint64_t most_blocks = blocks_in(r.count);  // of a chunk
  const std::uint64_t bitmap_bytes = ceil_div(blocks_, 64) * 8;
  express_ = !r.meets && tensor_bytes_ <= r.express_bytes && tensor_bytes_ + bitmap_bytes <= r.express_bytes;
  slice_blocks_ = express_ ? std::max<std::uint64_t>(blocks_, 1)
                           : choose_slice_blocks(r, r.count * r.element_bytes * chunks_, block_bytes_);
  if (!express_ && block_bytes_ < r.tile_block_bytes) cut_into_tiles(r);
  if (r.only_meets) slice_blocks_ = 1;
  chunk_slices_ = r.only_meets ? 0 : std::max<std::uint64_t>(1, ceil_div(most_blocks, slice_blocks_));
  slices_ = meets_ + chunks_ * chunk_slices_;
}

std::uint64_t SliceLayout::blocks_before(std::uint32_t chunk) const {
  if (begins_ == nullptr) return chunk * blocks_in(chunk_count_);
  std::uint64_t blocks = 0;
  for (std::uint32_t c = 0; c < chunk; ++c) blocks += blocks_in(chunk_elements(c));
  return blocks;
}

/// Makes the tensor tiled, if slots are large enough for a tile.
void SliceLayout::cut_into_tiles(const LayoutRequest& r) {
  const std::uint64_t room = r.slot_bytes - std::min(r.slot_bytes, wire::kMaxOverhead + wire::kTileOverhead);
  const std::uint64_t value_bytes = std::max(element_bytes_, r.tile_value_bytes);
  // A tile fits a message with all of its values and a bitmap.
  const std::uint64_t elements =
      std::min<std::uint64_t>(wire::kMostTileElements, 8 * room / (8 * value_bytes + 1));
  // Tiles consist of whole words of the bitmap of blocks, a power of two of them. Where there is no such
  // bitmap, they may also have fewer blocks.
  const std::uint64_t together = r.packed && !r.single_elements && elements < 64 * block_elements() ? 1 : 64;
  const std::uint64_t most = std::bit_floor(elements / (together * block_elements()));
  if (most == 0) return;
  const std::uint64_t wanted =
      std::max<std::uint64_t>(1, wanted_tiled_slice_bytes(r, tensor_bytes_) / (together * block_bytes_));
  tile_blocks_ = together * std::min(most, std::bit_floor(wanted));
  unit_elements_ = r.single_elements ? 1 : block_elements();
  slice_tiles_ = together * wanted / tile_blocks_;
  slice_blocks_ = slice_tiles_ * tile_blocks_;
}

// --- Owners

std::uint32_t SliceLayout::rotation(std::uint64_t row, std::uint32_t size) const {
  return static_cast<std::uint32_t>(mix(epoch_ + mix(row)) % size);
}

std::uint32_t SliceLayout::column(std::uint32_t place, std::uint32_t size, std::uint64_t row) const {
  return (place + size - rotation(row, size)) % size;
}

SliceLayout::Pool SliceLayout::pool_of(std::uint32_t chunk) const {
  const std::uint64_t all = chunks_ * chunk_slices_;
  switch (dealt_to_) {
    case LayoutRequest::Owners::all:
      break;
    case LayoutRequest::Owners::of_chunk:
      return {.begin = chunk * lanes_,
              .size = lanes_,
              .first = meets_ + chunk * chunk_slices_,
              .slices = chunk_slices_};
    case LayoutRequest::Owners::only:
      return {.begin = aggregator_ * lanes_, .size = lanes_, .first = meets_, .slices = all};
    case LayoutRequest::Owners::all_but:
      return {.size = owners_ - lanes_,
              .hole_at = aggregator_ * lanes_,
              .hole = lanes_,
              .first = meets_,
              .slices = all};
  }
  return {.size = owners_, .first = meets_, .slices = all};
}

SliceLayout::Pool SliceLayout::pool_with(std::uint32_t owner, std::uint32_t& place) const {
  const std::uint32_t aggregator = owner / lanes_;
  Pool pool = pool_of(dealt_to_ == LayoutRequest::Owners::of_chunk ? aggregator : 0);
  const bool in_hole = pool.hole > 0 && owner >= pool.hole_at && owner < pool.hole_at + pool.hole;
  place = owner - pool.begin - (pool.hole > 0 && owner >= pool.hole_at ? pool.hole : 0);
  if (in_hole || owner < pool.begin || place >= pool.size) pool.slices = 0;
  return pool;
}

std::uint32_t SliceLayout::owner(std::uint64_t slice) const {
  if (is_meeting(slice)) return meeting_owner();
  const Pool pool = pool_of(chunk_of(slice));
  const std::uint64_t i = slice - pool.first, row = i / pool.size;
  const auto place = static_cast<std::uint32_t>((i % pool.size + rotation(row, pool.size)) % pool.size);
  const std::uint32_t owner = pool.begin + place;
  return pool.hole > 0 && owner >= pool.hole_at ? owner + pool.hole : owner;
}

bool SliceLayout::on_lane(std::uint32_t lane, std::uint32_t lanes) const {
  if (lanes == 1) return true;
  const Pool pool = pool_of(0);
  if (pool.slices >= pool.size) return true;  // every owner that slices are dealt to has one
  if (meets_ != 0 && meeting_owner() % lanes == lane) return true;
  for (std::uint64_t s = pool.first; s < pool.first + pool.slices; ++s) {
    if (owner(s) % lanes == lane) return true;
  }
  return false;  // rows are rotated in the same way for all chunks, so chunk 0 stands for the others
}

std::uint64_t SliceLayout::owned(std::uint32_t owner) const {
  std::uint32_t place = 0;
  const Pool pool = pool_with(owner, place);
  const std::uint64_t meeting = meets_ != 0 && meeting_owner() == owner ? 1 : 0;
  if (pool.slices == 0) return meeting;
  const std::uint64_t full_rows = pool.slices / pool.size;
  const bool one_more = column(place, pool.size, full_rows) < pool.slices % pool.size;
  return meeting + full_rows + (one_more ? 1 : 0);
}

std::uint64_t SliceLayout::owned_slice(std::uint32_t owner, std::uint64_t k) const {
  if (meets_ != 0 && meeting_owner() == owner && k-- == 0) return 0;
  std::uint32_t place = 0;
  const Pool pool = pool_with(owner, place);
  return pool.first + k * pool.size + column(place, pool.size, k);
}

namespace {

/// Returns LayoutRequest::tile_block_bytes. There are no tiles for collectives other than allreduce, nor for
/// one rank alone, which has nothing to sum. Values that travel in a narrower type are always in tiles, and
/// so are packed results, whose time and memory must not follow the tensor as those of bitmaps do.
std::uint64_t tile_block_bytes(const EngineConfig& config, const wire::OperationRecord& record) {
  if (record.collective != wire::Collective::allreduce) return 0;
  if (record.algorithm == wire::Algorithm::hierarchy) return 0;
  const bool as_is = record.value_rule == wire::ValueRule::as_is;
  if (record.packed_result != 0 && as_is && config.tile_block_bytes > 0) return ~std::uint64_t{0};
  if (config.members.workers == 1) return 0;
  return record.value_rule == wire::ValueRule::as_is ? config.tile_block_bytes : kMostTiledBlockBytes + 1;
}

/// About how many bytes a stream is expected to have.
std::uint64_t packed_bytes(const EngineConfig& config, const wire::OperationRecord& record) {
  const auto dense = static_cast<double>(record.count * element_bytes(static_cast<DataType>(record.type)));
  const wire::Density density = record.density();
  return static_cast<std::uint64_t>(dense * (density.known() ? density.share() : config.packed_density));
}

/// The most slices for each owner of a packed result. Over links, where the density is known, there are as
/// many as there are full messages.
std::uint64_t packed_slices(const EngineConfig& config, const wire::OperationRecord& record) {
  return config.short_codes && record.density().known() ? kMostPackedSlicesPerOwner : kTiledSlicesPerOwner;
}

}  // namespace

SliceLayout layout_of(const EngineConfig& config, std::uint64_t epoch, const wire::OperationRecord& record,
                      const std::uint64_t* begins) {
  const bool meets =
      record.collective != wire::Collective::allreduce || record.algorithm == wire::Algorithm::hierarchy;
  LayoutRequest request{
      .epoch = epoch,
      .count = record.count,
      .element_bytes = element_bytes(static_cast<DataType>(record.type)),
      .block_elems = record.block_elems,
      .owners = config.owners(),
      .least_slice_bytes = least_slice_bytes(config),
      .slice_bytes = config.slice_bytes,
      .ahead_bytes = config.ahead_bytes,
      .slot_bytes = config.channel(wire::Priority::bulk).slot_bytes,
      .express_bytes = express_bytes(config),
      .tile_block_bytes = tile_block_bytes(config, record),
      .single_elements = record.value_rule != wire::ValueRule::as_is,
      .coded = wire::is_coded(record.value_rule),
      .packed = record.packed_result != 0,
      .packed_bytes = packed_bytes(config, record),
      .packed_slices = packed_slices(config, record),
      .units_per_list_step = record.packed_result != 0 ? kUnitsPerPackedStep : kUnitsPerListStep,
      .meets = meets,
      .only_meets = meets && record.collective == wire::Collective::allreduce,
      .chunk_count = record.count,
      .aggregator = record.root(),
      .lanes = static_cast<std::uint32_t>(config.lanes)};
  if (record.algorithm == wire::Algorithm::doubling) {
    request.express_bytes = doubling_bytes(config);
    request.express_priority = wire::Priority::doubling;
  }
  if (record.algorithm == wire::Algorithm::merging) {
    request.owners = static_cast<std::uint32_t>(config.lanes);
    request.slot_bytes = config.channel(wire::Priority::merging).slot_bytes;
    request.express_bytes = 0;
    if (config.tile_block_bytes > 0)
      request.tile_block_bytes = std::max(request.tile_block_bytes, kMostTiledBlockBytes + 1);
    request.tile_value_bytes =
        element_bytes(partial_type(static_cast<DataType>(record.type), static_cast<ReduceOp>(record.op)));
    request.priority = wire::Priority::merging;
  }
  const Members& members = config.members;
  if (wire::is_chunked(record.collective)) {
    request.chunks = static_cast<std::uint32_t>(members.workers);
    request.begins = begins;
    request.chunk_count = record.chunk_count;
    if (members.dedicated == 0) request.dealt_to = LayoutRequest::Owners::of_chunk;
  } else if (wire::has_root(record.collective) && members.dedicated == 0 && members.workers > 1) {
    // The links of the root carry all of the data once. As an owner it would carry a part of it again.
    const bool root_alone = record.collective == wire::Collective::reduce && members.workers == 2;
    request.dealt_to = root_alone ? LayoutRequest::Owners::only : LayoutRequest::Owners::all_but;
  }
  return SliceLayout(request);
}

bool same_layout(const EngineConfig& config, const wire::OperationRecord& a, const wire::OperationRecord& b) {
  if (!a.same_layout(b)) return false;
  return a.packed_result == b.packed_result ||
         (layout_of(config, 0, a).express() && layout_of(config, 0, b).express());
}

}  // namespace nzcl::engine
