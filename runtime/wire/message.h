// The contents of a slot: little-endian structures of fixed widths. All ranks must run the same version,
// which they check when they meet. runtime/wire/README.md has the layout and an example, and
// tests/unit/wire_test.cc compares it with this file.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "runtime/wire/collective.h"
#include "runtime/wire/density.h"
#include "runtime/wire/tile.h"

namespace nzcl::wire {

static_assert(std::endian::native == std::endian::little,
              "wire structures are used in place: little-endian hosts only");

/// Must be raised with every change of anything on the wire.
inline constexpr std::uint16_t kVersion = 17;
inline constexpr std::uint16_t kMagic = 0x5a4e;  // "NZ"

/// Bits of Header::flags.
enum Flags : std::uint16_t {
  kHasBitmap = 1,  // an OperationRecord (upwards) and the slice's bitmap follow; that of a tiled one is empty
  kDirect = 2,     // downwards: the payload was written in place, by `direct_writes` separate writes
  kMore = 4,       // another section begins at the next multiple of 8 behind this one
  kRefused = 8,    // a rank has refused its caller's request; the payload is the reason, as text
  kTiles = 16,     // the payload is a number of tiles (wire/tile.h)
  kOver = 32,      // downwards: the slice is over, and its result is not for this rank
  kStreamed = 64,  // the payload was stored past the sender's caches; only the receiver's measuring needs it
  kBatch = 128,    // upwards: the payload is what the rank passes on of others (wire/batch.h)
};

/// The first bytes of every section, both up (a worker's contribution) and down (an aggregator's result). A
/// message consists of one or more sections, whose slices have ascending sequences.
struct Header {
  std::uint16_t magic = kMagic;
  std::uint16_t version = kVersion;
  std::uint16_t flags = 0;
  std::uint16_t credit = 0;    // slots released of the channel that runs the other way (mod 2^16)
  std::uint64_t epoch = 0;     // the operation
  std::uint64_t slice = 0;     // the slice of its tensor
  std::uint64_t sequence = 0;  // position of the slice in the channel pair's order, over all operations
  /// Where the payload starts in the slice's stream of non-zero blocks, in bytes. With kTiles: how many tiles
  /// of the slice come before.
  std::uint64_t stream_offset = 0;
  std::uint32_t bitmap_bytes = 0;  // a multiple of 8
  std::uint32_t payload_bytes = 0;
  /// With kDirect: the number of direct writes. Where the transport does not keep writes in order, the
  /// receiver waits for one immediate of each.
  std::uint32_t direct_writes = 0;
  std::uint16_t refused_by = 0;    // kRefused: the rank
  std::uint16_t refusal_code = 0;  // kRefused: an nzcl::ErrorCode
  std::uint32_t tiles = 0;         // kTiles: their number, at least 1
  std::uint16_t entries = 0;       // kBatch: contributions in the payload
  std::uint16_t reserved = 0;
};
static_assert(sizeof(Header) == 64 && std::is_trivially_copyable_v<Header>);

/// Adds a flag to a header that has already been written to `at`.
inline void add_flag(std::byte* at, Flags flag) {
  std::uint16_t flags = 0;
  std::memcpy(&flags, at + offsetof(Header, flags), sizeof flags);
  flags |= flag;
  std::memcpy(at + offsetof(Header, flags), &flags, sizeof flags);
}

/// Upwards, with kHasBitmap: what the rank believes the operation to be, and where its result is to go.
struct OperationRecord {
  std::uint64_t count = 0;  // elements of the tensor, or of the largest chunk
  std::uint64_t block_elems = 0;
  std::uint8_t type = 0;                    // nzcl::DataType
  std::uint8_t op = 0;                      // nzcl::ReduceOp
  std::uint8_t packed_result = 0;           // 1: union indices and packed values; 0: dense output
  ValueRule value_rule = ValueRule::as_is;  // of a tiled tensor's values
  Collective collective = Collective::allreduce;
  Algorithm algorithm = Algorithm::push;
  /// For a broadcast or reduce: the root's rank. For an allreduce: how dense the ranks' inputs are expected
  /// to be. See root() and density().
  std::uint16_t root_or_density = 0;
  std::uint64_t output_address = 0;  // dense output: the first byte of the tensor, or of the slice's chunk
  std::uint64_t output_key = 0;
  std::uint64_t tag = 0;          // the caller's own name for the operation
  std::uint64_t chunk_count = 0;  // of a collective with chunks: elements of the slice's chunk
  /// For a collective with chunks: a checksum of the counts of all chunks, or 0 if these are equal. For a
  /// compressed allreduce: a checksum of what the ranks' compressors must have in common. Otherwise 0.
  std::uint64_t checksum = 0;

  /// 0 for a collective that has no root.
  std::uint16_t root() const { return has_root(collective) ? root_or_density : std::uint16_t{0}; }
  /// Unknown for collectives other than allreduce, whose exchange does not depend on it.
  Density density() const {
    return collective == Collective::allreduce ? Density::of_code(root_or_density) : Density();
  }

  /// Returns true if two ranks agree on everything but where the output lies.
  bool same_operation(const OperationRecord& other) const {
    return same_layout(other) && op == other.op && packed_result == other.packed_result &&
           checksum == other.checksum && tag == other.tag && density() == other.density();
  }
  /// Returns true if all bytes are the same but those that say where the output lies.
  bool same_but_output(const OperationRecord& other) const {
    constexpr std::size_t kBegin = offsetof(OperationRecord, output_address);
    constexpr std::size_t kEnd = offsetof(OperationRecord, tag);
    const auto* a = reinterpret_cast<const std::byte*>(this);
    const auto* b = reinterpret_cast<const std::byte*>(&other);
    return std::memcmp(a, b, kBegin) == 0 && std::memcmp(a + kEnd, b + kEnd, sizeof *this - kEnd) == 0;
  }
  /// Whether the tensors are cut into the same slices, if either both results are packed or neither is. See
  /// engine::same_layout().
  bool same_layout(const OperationRecord& other) const {
    return count == other.count && block_elems == other.block_elems && type == other.type &&
           collective == other.collective && algorithm == other.algorithm && root() == other.root() &&
           value_rule == other.value_rule &&  // it decides whether there are tiles, and what their units are
           (collective == Collective::allreduce || checksum == other.checksum) &&
           (packed_result == 0 || density() == other.density()) &&  // it decides how large slices are
           (algorithm != Algorithm::merging || op == other.op);     // it decides the type of partial sums
  }
};
static_assert(sizeof(OperationRecord) == 64 && std::is_trivially_copyable_v<OperationRecord>);

/// The most sections of a message. It bounds the memory in which a receiver keeps track of them.
inline constexpr std::uint32_t kMaxSections = 16;

/// Sections begin at multiples of this.
inline constexpr std::uint64_t kSectionAlignment = 8;
inline constexpr std::uint64_t aligned_section(std::uint64_t end) {
  return (end + kSectionAlignment - 1) / kSectionAlignment * kSectionAlignment;
}

/// The most bytes that the fixed parts of a section take.
inline constexpr std::uint64_t kMaxOverhead = sizeof(Header) + sizeof(OperationRecord);

}  // namespace nzcl::wire
