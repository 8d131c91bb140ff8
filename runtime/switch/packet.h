// Packets of the switch exchange: their bytes (see README.md), and how they are sealed and checked.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include "runtime/base/siphash.h"
#include "runtime/kernels/sip_strands.h"

namespace nzcl::engine::slot_pool {

inline constexpr std::uint32_t kMagic = 0x31535a4e;  // "NZS1"
/// Instead of a piece: an opening round has none, or there is no next one.
inline constexpr std::uint32_t kNoPiece = ~std::uint32_t{0};
inline constexpr std::uint16_t kAggregatorRank = 0xffff;
/// As many blocks have a bit in a packet.
inline constexpr std::size_t kMostBlocks = 64;

enum class Kind : std::uint8_t { contribution = 1, result = 2, waiting = 3, question = 4 };
inline constexpr std::uint8_t kHasValues = 1, kClamped = 2, kAbsent = 4;

struct Header {
  std::uint32_t magic = kMagic;
  Kind kind = Kind::contribution;
  std::uint8_t flags = 0;
  std::uint16_t rank = 0;
  std::uint32_t job = 0;
  std::uint16_t slot = 0;
  std::uint8_t exponent = 0, next_exponent = 0;
  std::uint32_t round = 0;
  std::uint32_t piece = kNoPiece;
  std::uint32_t next = kNoPiece;
  std::uint32_t shape = 0;
  std::uint64_t blocks = 0;
  std::uint64_t checksum = 0;
};
static_assert(sizeof(Header) == 48 && offsetof(Header, checksum) == 40 && offsetof(Header, round) == 16);

/// In an answer *absent*, instead of blocks: the packet of this rank that shows it. That is the question, or,
/// if nobody has asked, the contribution of this rank that came last.
inline std::uint64_t cause_of(std::uint16_t slot, std::uint32_t round) noexcept {
  return std::uint64_t{slot} << 32 | round;
}

/// What the members of one lane share, and nobody else knows.
struct Job {
  std::uint32_t tag = 0;
  SipKey key;
};

/// SipHash-2-4 of the header in front of the checksum, of four digests that stand for the values as far as
/// they fill groups, and of the rest of the values.
inline std::uint64_t checksum_of(std::span<const std::byte> packet, const SipKey& key) noexcept {
  SipHash hash(key);
  hash.add(packet.first(offsetof(Header, checksum)));
  std::span<const std::byte> values = packet.subspan(sizeof(Header));
  if (const std::size_t groups = values.size() / kSipGroupBytes; groups > 0) {
    std::array<std::uint64_t, kSipStrands> digests;
    sip_strands(values.data(), groups, key, digests.data());
    hash.add(std::as_bytes(std::span(digests)));
    values = values.subspan(groups * kSipGroupBytes);
  }
  hash.add(values);
  return hash.finish();
}

/// Writes the header in front of values that are there already, with its tag and checksum.
inline void seal(Header header, const Job& job, std::span<std::byte> packet) noexcept {
  header.job = job.tag;
  std::memcpy(packet.data(), &header, sizeof header);
  header.checksum = checksum_of(packet, job.key);
  std::memcpy(packet.data(), &header, sizeof header);
}

/// A packet that a member of the job has made. Whether it makes sense is for the receiver to find out.
struct Opened {
  Header header;
  std::span<const std::int32_t> values;
};

/// Returns nothing for a packet that no member of the job has made as it is. Precondition: the bytes are
/// aligned to 4.
inline std::optional<Opened> open(std::span<const std::byte> packet, const Job& job) noexcept {
  Opened opened;
  if (packet.size() < sizeof(Header) || packet.size() % sizeof(std::int32_t) != 0) return std::nullopt;
  std::memcpy(&opened.header, packet.data(), sizeof(Header));
  if (opened.header.magic != kMagic || opened.header.job != job.tag) return std::nullopt;
  if (opened.header.checksum != checksum_of(packet, job.key)) return std::nullopt;
  const bool has_values = opened.header.flags & kHasValues;
  if (has_values != (packet.size() > sizeof(Header))) return std::nullopt;
  opened.values = {reinterpret_cast<const std::int32_t*>(packet.data() + sizeof(Header)),
                   (packet.size() - sizeof(Header)) / sizeof(std::int32_t)};
  return opened;
}

/// Whether round `a` is later than round `b`. Rounds are counted modulo 2^32.
inline bool is_later(std::uint32_t a, std::uint32_t b) noexcept {
  return static_cast<std::int32_t>(a - b) > 0;
}

}  // namespace nzcl::engine::slot_pool
