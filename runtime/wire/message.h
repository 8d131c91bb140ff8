// What lies in a slot. Little-endian, fixed widths; every rank runs the same version (checked when they
// meet). Layout, diagrams and an example: runtime/wire/README.md, which tests/unit/wire_test.cc checks.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace nzcl::wire {

static_assert(std::endian::native == std::endian::little,
              "wire structures are used in place: little-endian hosts only");

/// Changes with every change of anything on the wire.
inline constexpr std::uint16_t kVersion = 2;
inline constexpr std::uint16_t kMagic = 0x5a4e;  // "NZ"

/// Bits of Header::flags.
enum Flags : std::uint16_t {
  kHasBitmap = 1,  // an OperationRecord (upwards) and the slice's bitmap follow the header
  kDirect =
      2,      // downwards: the payload was written to its final place by `direct_writes` writes of their own
  kMore = 4,  // behind this section, at the next multiple of 8, another one begins
};

/// First bytes of every section, up (a worker's contribution) and down (an aggregator's result) alike. A
/// message is one or more sections, of slices that follow each other.
struct Header {
  std::uint16_t magic = kMagic;
  std::uint16_t version = kVersion;
  std::uint16_t flags = 0;
  std::uint16_t credit = 0;    // slots released of the channel that runs the other way (mod 2^16)
  std::uint64_t epoch = 0;     // the operation
  std::uint64_t slice = 0;     // the slice of its tensor
  std::uint64_t sequence = 0;  // position of the slice in the channel pair's order, over all operations
  std::uint64_t stream_offset =
      0;  // where the payload starts in the slice's stream of non-zero blocks, in bytes
  std::uint32_t bitmap_bytes = 0;  // multiple of 8
  std::uint32_t payload_bytes = 0;
  std::uint32_t direct_writes =
      0;  // kDirect: writes with an immediate to expect; 0 where the transport orders writes
  std::uint32_t reserved = 0;
  std::uint64_t reserved2 = 0;
};
static_assert(sizeof(Header) == 64 && std::is_trivially_copyable_v<Header>);

/// Of a header that has been written to `at` already.
inline void add_flag(std::byte* at, Flags flag) {
  std::uint16_t flags = 0;
  std::memcpy(&flags, at + offsetof(Header, flags), sizeof flags);
  flags |= flag;
  std::memcpy(at + offsetof(Header, flags), &flags, sizeof flags);
}

/// Upwards with kHasBitmap: what the rank believes the operation to be, and where its result is to go.
struct OperationRecord {
  std::uint64_t count = 0;  // elements
  std::uint64_t block_elems = 0;
  std::uint8_t type = 0;           // nzcl::DataType
  std::uint8_t op = 0;             // nzcl::ReduceOp
  std::uint8_t packed_result = 0;  // 1: union indices and packed values; 0: dense output
  std::uint8_t reserved[5] = {};
  std::uint64_t output_address = 0;  // dense output: the tensor's first byte (verbs::RemoteMemory)
  std::uint64_t output_key = 0;

  /// Ranks must agree on all but the place of the output.
  bool same_operation(const OperationRecord& other) const {
    return count == other.count && block_elems == other.block_elems && type == other.type && op == other.op &&
           packed_result == other.packed_result;
  }
};
static_assert(sizeof(OperationRecord) == 40 && std::is_trivially_copyable_v<OperationRecord>);

/// Sections of a message, at most: so that who takes them needs a bounded place for each.
inline constexpr std::uint32_t kMaxSections = 16;

/// Sections begin at multiples of this.
inline constexpr std::uint64_t kSectionAlignment = 8;
inline constexpr std::uint64_t aligned_section(std::uint64_t end) {
  return (end + kSectionAlignment - 1) / kSectionAlignment * kSectionAlignment;
}

/// Downwards: where the section behind this one begins, which begins at `at`.
inline std::uint64_t next_result(std::uint64_t at, const Header& header) {
  return aligned_section(at + sizeof header + header.bitmap_bytes + header.payload_bytes);
}

/// Room that a section's fixed parts take in a slot, at most.
inline constexpr std::uint64_t kMaxOverhead = sizeof(Header) + sizeof(OperationRecord);

}  // namespace nzcl::wire
