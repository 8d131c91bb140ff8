// The seal: the last 8 bytes of every message, by which its receiver knows that all of the message is there.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>

#include "runtime/wire/immediate.h"
#include "runtime/wire/message.h"

namespace nzcl::wire {

/// An immediate alone proves nothing. Over some transports whoever reaches a lane's port can send one,
/// without any key (runtime/bootstrap/SECURITY.md). It may then announce a message that has not come, or has
/// come only in part. So a message ends with a number that follows from its first header, its length and a
/// secret which each lane draws at random and tells only to members. Nobody but a member can write into a
/// slot, and what an earlier message has left there is not the seal of this one.
inline constexpr std::uint64_t kSealBytes = sizeof(std::uint64_t);

/// Returns the seal of the message of `bytes` bytes that begins at `message`. Precondition: bytes >=
/// sizeof(Header).
///
/// It is no proof against somebody who can write into slots, so a sum of products is enough, which takes a
/// few nanoseconds.
inline std::uint64_t seal_of(std::uint64_t secret, const std::byte* message, std::uint64_t bytes) {
  constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15;  // 2^64 divided by the golden ratio: evenly mixed bits
  std::array<std::uint64_t, sizeof(Header) / sizeof(std::uint64_t)> words;
  std::memcpy(words.data(), message, sizeof words);
  std::uint64_t sum = bytes * kOdd + secret;
  for (std::size_t i = 0; i < words.size(); ++i) sum += words[i] * ((secret + kOdd * (2 * i + 1)) | 1);
  return sum ^ sum >> 32;
}

/// The seal of a message that carries a checksum of its bytes: half of it is that, and the other half shows
/// that the message is there.
inline std::uint64_t with_checksum(std::uint64_t seal, std::uint32_t checksum) {
  return seal >> 32 << 32 | checksum;
}
inline bool same_but_checksum(std::uint64_t a, std::uint64_t b) { return a >> 32 == b >> 32; }

/// Returns where the message in a slot of `slot_bytes` ends, as its headers say, or nothing if they lead
/// beyond the slot. It checks nothing else.
inline std::optional<std::uint64_t> message_end(const std::byte* slot, std::uint64_t slot_bytes,
                                                Direction direction) {
  std::uint64_t at = 0;
  for (std::uint32_t sections = 0; sections < kMaxSections; ++sections) {
    Header header;
    if (at > slot_bytes || slot_bytes - at < sizeof header) return std::nullopt;
    std::memcpy(&header, slot + at, sizeof header);
    const bool with_record = direction == Direction::up && (header.flags & kHasBitmap) != 0;
    // The lengths have 32 bits, so their sum cannot wrap.
    at += sizeof header + (with_record ? sizeof(OperationRecord) : 0) + std::uint64_t{header.bitmap_bytes} +
          header.payload_bytes;
    if (at > slot_bytes) return std::nullopt;
    if ((header.flags & kMore) == 0) return at;
    at = aligned_section(at);
  }
  return std::nullopt;
}

/// Writes the seal behind the message. What stands there already is not written again, because a receiver may
/// be reading it: one message may go to several.
inline void put_seal(std::uint64_t seal, std::byte* at) {
  std::uint64_t there = 0;
  std::memcpy(&there, at, sizeof there);
  if (there != seal) std::memcpy(at, &seal, sizeof seal);
}

/// What a member's messages are sealed with.
struct Sealing {
  std::uint64_t secret = 0;
  bool checksum = false;  // they carry one
};

/// Where a message's seal lies in its slot, with kSealBytes behind it, and the checksum that it carries.
struct FoundSeal {
  std::uint64_t at = 0;
  std::optional<std::uint32_t> checksum;
};

/// Returns nothing if a slot of `slot_bytes` does not hold a whole message of a lane that seals so. Whether
/// its bytes have their checksum is left to the caller.
inline std::optional<FoundSeal> find_seal(const Sealing& sealing, const std::byte* slot,
                                          std::uint64_t slot_bytes, Direction direction) {
  const auto end = message_end(slot, slot_bytes, direction);
  if (!end) return std::nullopt;
  std::uint64_t seal = 0;
  std::memcpy(&seal, slot + *end, sizeof seal);
  const std::uint64_t expected = seal_of(sealing.secret, slot, *end);
  if (!sealing.checksum)
    return seal == expected ? std::optional(FoundSeal{*end, std::nullopt}) : std::nullopt;
  if (!same_but_checksum(seal, expected)) return std::nullopt;
  return FoundSeal{*end, static_cast<std::uint32_t>(seal)};
}

}  // namespace nzcl::wire
