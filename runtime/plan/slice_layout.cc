#include "runtime/plan/slice_layout.h"

#include <algorithm>

#include "nzcl/types.h"

namespace nzcl::engine {
namespace {

std::uint64_t ceil_div(std::uint64_t a, std::uint64_t b) { return a / b + (a % b != 0); }

// splitmix64's finaliser (Steele, Lea, Flood, OOPSLA 2014).
std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

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

std::uint64_t choose_slice_blocks(const LayoutRequest& r, std::uint64_t tensor_bytes,
                                  std::uint64_t block_bytes) {
  const std::uint64_t shared = std::max(ceil_div(tensor_bytes, r.owners), kLeastSliceBytes);
  const std::uint64_t wanted =
      r.slice_bytes ? r.slice_bytes : std::min(pipelined_slice_bytes(r, tensor_bytes), shared);
  std::uint64_t blocks = std::max<std::uint64_t>(1, wanted / block_bytes);
  blocks = std::min(blocks, r.slot_bytes / 2 * 8);
  // A large slice is cut to whole words of bits, so that the bitmaps of all slices together are that of the
  // tensor. A small slice would lose too much by that.
  if (blocks >= 64) blocks -= blocks % 64;
  return blocks;
}

}  // namespace

SliceLayout::SliceLayout(const LayoutRequest& r)
    : epoch_(r.epoch),
      tensor_bytes_(r.count * r.element_bytes),
      block_bytes_(std::min(r.block_elems, std::max<std::uint64_t>(r.count, 1)) * r.element_bytes),
      blocks_(ceil_div(tensor_bytes_, block_bytes_)),
      owners_(r.owners) {
  const std::uint64_t bitmap_bytes = ceil_div(blocks_, 64) * 8;
  express_ = tensor_bytes_ <= r.express_bytes && tensor_bytes_ + bitmap_bytes <= r.express_bytes;
  slice_blocks_ =
      express_ ? std::max<std::uint64_t>(blocks_, 1) : choose_slice_blocks(r, tensor_bytes_, block_bytes_);
  slices_ = std::max<std::uint64_t>(1, ceil_div(blocks_, slice_blocks_));
}

std::uint64_t SliceLayout::blocks_of(std::uint64_t slice) const {
  return std::min(slice_blocks_, blocks_ - first_block(slice));
}

std::uint64_t SliceLayout::bytes_of_blocks(std::uint64_t slice, std::uint64_t block, std::uint64_t n) const {
  const std::uint64_t begin = offset_of(slice, block);
  return std::min(begin + n * block_bytes_, tensor_bytes_) - begin;
}

std::uint32_t SliceLayout::owner(std::uint64_t slice) const {
  const std::uint64_t row = slice / owners_;
  return static_cast<std::uint32_t>((slice % owners_ + mix(epoch_ + mix(row)) % owners_) % owners_);
}

bool SliceLayout::on_lane(std::uint32_t lane, std::uint32_t lanes) const {
  if (lanes == 1 || slices_ >= owners_) return true;  // there is only one lane, or every owner has a slice
  for (std::uint64_t s = 0; s < slices_; ++s) {
    if (owner(s) % lanes == lane) return true;
  }
  return false;
}

std::uint32_t SliceLayout::column(std::uint32_t owner, std::uint64_t row) const {
  const auto rotation = static_cast<std::uint32_t>(mix(epoch_ + mix(row)) % owners_);
  return (owner + owners_ - rotation) % owners_;
}

std::uint64_t SliceLayout::owned(std::uint32_t owner) const {
  const std::uint64_t full_rows = slices_ / owners_;
  return full_rows + (column(owner, full_rows) < slices_ % owners_ ? 1 : 0);
}

SliceLayout layout_of(const EngineConfig& config, std::uint64_t epoch, const wire::OperationRecord& record) {
  return SliceLayout({.epoch = epoch,
                      .count = record.count,
                      .element_bytes = element_bytes(static_cast<DataType>(record.type)),
                      .block_elems = record.block_elems,
                      .owners = config.owners(),
                      .slice_bytes = config.slice_bytes,
                      .ahead_bytes = config.ahead_bytes,
                      .slot_bytes = config.channel(wire::Priority::bulk).slot_bytes,
                      .express_bytes = express_bytes(config)});
}

}  // namespace nzcl::engine
