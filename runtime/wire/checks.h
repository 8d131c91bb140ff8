// Checks of a peer's bytes that need nothing but the bytes themselves. The functions are pure. Each check
// returns what is wrong, as a part of a sentence, or nullptr.
#pragma once

#include <cstdint>

#include "nzcl/types.h"
#include "runtime/wire/immediate.h"
#include "runtime/wire/message.h"
#include "runtime/wire/refusal.h"
#include "runtime/wire/tile.h"

namespace nzcl::wire {

/// The most bytes that a tensor or a block can have. It is small enough that the sum of two sizes never
/// wraps.
inline constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 62;
/// The most blocks that a tensor can have. Even if none of them is there, each rank keeps some bits of it.
inline constexpr std::uint64_t kMostBlocks = std::uint64_t{1} << 40;
/// Returns true if a tensor of `count` elements in blocks of `block_elems` can be laid out in memory. It
/// checks what callers ask for, and what peers claim.
constexpr bool can_be_laid_out(std::uint64_t count, std::uint64_t block_elems, std::uint64_t element_bytes) {
  return block_elems > 0 && count <= kMostBytes / element_bytes &&
         block_elems <= kMostBytes / element_bytes && count / block_elems < kMostBlocks;
}

/// Checks the header of a section that begins `at` bytes into a slot. Its lengths have 32 bits, so that their
/// sum cannot wrap in 64 bits.
inline const char* wrong_with(const Header& h, Direction direction, std::uint64_t at,
                              std::uint64_t slot_bytes) {
  const bool up = direction == Direction::up;
  const bool with_bitmap = (h.flags & kHasBitmap) != 0, direct = (h.flags & kDirect) != 0,
             refused = (h.flags & kRefused) != 0, tiles = (h.flags & kTiles) != 0,
             over = (h.flags & kOver) != 0;
  const std::uint64_t fixed = sizeof h + (up && with_bitmap ? sizeof(OperationRecord) : 0);
  if (h.magic != kMagic) return "it does not begin with nzcl's magic number";
  if (h.version != kVersion) return "it is of another version";
  if ((h.flags & ~(kHasBitmap | kDirect | kMore | kRefused | kTiles | kOver | kStreamed)) != 0)
    return "it has unknown flags";
  if (up && (direct || over)) return "it has a flag that only results have";
  if (over && (with_bitmap || direct || refused || tiles || h.payload_bytes != 0))
    return "it says that its result is for others, and brings one";
  if (!with_bitmap && h.bitmap_bytes != 0) return "it has bytes of a bitmap and none is announced";
  if (direct && h.payload_bytes != 0) return "it says that its data was written in place, and carries some";
  if (!direct && h.direct_writes != 0) return "it counts direct writes, and announces none";
  if (tiles != (h.tiles > 0)) return "its flags and its number of tiles contradict each other";
  if (tiles && (direct || refused || h.bitmap_bytes > 0 || (with_bitmap && !up)))
    return "it cannot have tiles with its other flags";
  if (refused && (direct || with_bitmap != up)) return "it cannot be a refusal with its other flags";
  if (refused && h.payload_bytes > kMostRefusalText) return "its reason for a refusal is too long";
  if (refused && !is_error_code(h.refusal_code)) return "its error code does not exist";
  if (at + fixed + h.bitmap_bytes + h.payload_bytes > slot_bytes) return "it is longer than its slot";
  return nullptr;
}

/// Checks where a rank says that its output is. Whether the address is the right one concerns only the rank
/// that named it. It may even be zero, because some transports count addresses from the beginning of the
/// registered memory. Precondition: the record's type is known, and its tensor can be laid out.
inline const char* wrong_with_output(const OperationRecord& r) {
  const std::uint64_t bytes = r.count * element_bytes(static_cast<DataType>(r.type));
  return r.output_address > ~std::uint64_t{0} - bytes ? "its output goes beyond all addresses" : nullptr;
}

/// Checks what a rank says about an operation.
inline const char* wrong_with(const OperationRecord& r) {
  if (r.type >= kDataTypes) return "its element type does not exist";
  if (r.op >= kReduceOps) return "its reduction does not exist";
  if (r.packed_result > 1) return "its form of result does not exist";
  if (static_cast<int>(r.collective) >= kCollectives) return "its collective does not exist";
  if (static_cast<int>(r.algorithm) >= kAlgorithms) return "its algorithm does not exist";
  if (r.algorithm == Algorithm::merging && r.value_rule != ValueRule::as_is)
    return "its values cannot be coded in that way";
  if (r.algorithm != Algorithm::push && r.collective != Collective::allreduce)
    return "its collective is not exchanged in that way";
  if (r.algorithm == Algorithm::hierarchy && r.value_rule != ValueRule::as_is)
    return "its values are not summed in two levels";
  if (is_chunked(r.collective) && r.root_or_density != 0)
    return "its collective has neither root nor density";
  if (r.chunk_count > r.count) return "its chunk is larger than the largest one";
  if (static_cast<unsigned>(r.value_rule) >= kValueRules) return "its code of values does not exist";
  if (r.value_rule != ValueRule::as_is && static_cast<DataType>(r.type) != DataType::float32)
    return "its values cannot be coded as narrower floats";
  const std::uint64_t element = element_bytes(static_cast<DataType>(r.type));
  if (!can_be_laid_out(r.count, r.block_elems, element))
    return "its tensor is larger than memory can be, or has too many blocks";
  if (r.collective != Collective::allreduce && r.value_rule != ValueRule::as_is)
    return "its values cannot be coded";
  if (is_chunked(r.collective) && r.count > kMostBytes / kMaxMembers / element)
    return "its chunks are larger than memory can be";
  return wrong_with_output(r);
}

}  // namespace nzcl::wire
