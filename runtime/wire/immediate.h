// The 32 bits of immediate data that tell a receiver what has arrived. Bytes on the wire:
// runtime/wire/README.md.
#pragma once

#include <cstdint>

namespace nzcl::wire {

/// Which way a channel runs between a worker and an aggregator.
enum class Direction : std::uint8_t { up = 0, down = 1 };

/// Small operations have channels of their own, so that they overtake large ones. So do those that are
/// exchanged by doubling or by merging, because ranks send each other messages then, and none go to an owner.
enum class Priority : std::uint8_t { bulk = 0, express = 1, doubling = 2, merging = 3 };
inline constexpr int kPriorities = 4;
inline constexpr Priority kAllPriorities[kPriorities] = {Priority::bulk, Priority::express,
                                                         Priority::doubling, Priority::merging};

/// Whether ranks send each other messages at this priority, so that its channels only run up.
constexpr bool between_ranks(Priority p) { return p == Priority::doubling || p == Priority::merging; }

/// Names one of the channels between two members, seen from one of them: the other member, the direction and
/// the priority. Those of priorities doubling and merging only run up.
struct ChannelId {
  std::uint16_t member = 0;
  Direction direction = Direction::up;
  Priority priority = Priority::bulk;
  friend bool operator==(const ChannelId&, const ChannelId&) = default;
};

/// The most members that a communicator can have: their numbers must fit the immediate.
inline constexpr int kMaxMembers = 4096;

/// 31   30 29                    18 17        16    15            0
/// [ kind ][ member: 12 bits       ][ dir ][ prio. ][ value: 16    ]
/// [  3   ][ member: 12 bits       ][ cr. ][   m   ][ value: 16    ]    cr.: 1 = credit; m: 0 = priority
///                                                                       doubling, 1 = merging
struct Immediate {
  enum class Kind : std::uint8_t {
    /// A message from `member` lies in slot `value` of the channel. If messages are lent, `value` is the
    /// number of the sender's staging buffer instead.
    message = 0,
    /// A direct write from `member` has arrived. `value` is the sequence of its slice, modulo 2^16.
    direct = 1,
    /// `member` has released `value` slots of the channel that goes to it, counted from the start, modulo
    /// 2^16.
    credit = 2,
  };
  Kind kind = Kind::message;
  ChannelId channel;
  std::uint16_t value = 0;
  friend bool operator==(const Immediate&, const Immediate&) = default;
};

constexpr std::uint32_t encode(const Immediate& imm) {
  if (between_ranks(imm.channel.priority)) {
    return 3u << 30 | static_cast<std::uint32_t>(imm.channel.member & 0xfff) << 18 |
           static_cast<std::uint32_t>(imm.kind == Immediate::Kind::credit) << 17 |
           static_cast<std::uint32_t>(imm.channel.priority == Priority::merging) << 16 | imm.value;
  }
  return static_cast<std::uint32_t>(imm.kind) << 30 |
         static_cast<std::uint32_t>(imm.channel.member & 0xfff) << 18 |
         static_cast<std::uint32_t>(imm.channel.direction) << 17 |
         static_cast<std::uint32_t>(imm.channel.priority) << 16 | imm.value;
}

/// Decodes any 32 bits: every pattern is an immediate, though not always of a channel that exists.
constexpr Immediate decode(std::uint32_t bits) {
  if (bits >> 30 == 3) {
    return {(bits >> 17 & 1) != 0 ? Immediate::Kind::credit : Immediate::Kind::message,
            {static_cast<std::uint16_t>(bits >> 18 & 0xfff), Direction::up,
             (bits >> 16 & 1) != 0 ? Priority::merging : Priority::doubling},
            static_cast<std::uint16_t>(bits)};
  }
  return {static_cast<Immediate::Kind>(bits >> 30),
          {static_cast<std::uint16_t>(bits >> 18 & 0xfff), static_cast<Direction>(bits >> 17 & 1),
           static_cast<Priority>(bits >> 16 & 1)},
          static_cast<std::uint16_t>(bits)};
}

}  // namespace nzcl::wire
