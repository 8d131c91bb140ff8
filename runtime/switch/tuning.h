// The constants of the switch exchange that were measured or chosen. What a packet can hold is in packet.h.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace nzcl::engine::slot_pool {

// --- Pieces and slots

/// The largest piece: larger packets would not make the exchange faster, but slots hold fewer of them.
inline constexpr std::uint32_t kMostPieceElements = 2048;
/// What a packet costs beside its values, as bytes of them: its headers (114 bytes over Ethernet), and its
/// way through two kernels and two checksums.
inline constexpr std::uint64_t kPacketCostBytes = 256;
/// Of any aggregator. Those of nzcl_switch are chosen by whoever starts it, within these bounds.
inline constexpr std::uint32_t kLeastSlots = 4;
inline constexpr std::uint32_t kMostSlots = 1024;
/// The memory of an aggregator's slots.
inline constexpr std::size_t kMostSlotBytes = 16 << 20;
/// A tensor uses one slot for so many pieces, because an opening round is worth its packets only if some
/// pieces follow it; but always as many slots as `kSlotsOfAnyTensor`, if there are so many.
inline constexpr std::uint32_t kPiecesForASlot = 8, kSlotsOfAnyTensor = 256;
/// The answers that may wait to be sent, for each slot: one result, and repetitions for which ranks ask.
inline constexpr std::size_t kAnswersOfSlot = 4;
/// Packets that are received, or sent, in one step. A UDP port sends as many together.
inline constexpr std::size_t kPacketsAtOnce = 64;

// --- The window

/// What all workers together may have under way to an aggregator before they have measured that its link
/// takes more, and how many packets each one: README.md says why.
inline constexpr std::size_t kUnderWayUnmeasured = 1 << 20;
inline constexpr std::uint32_t kLeastWindow = 4, kMostWindowUnmeasured = 256;
/// A link is full when round trips take `kQueue` times the least one. The window may then hold `kFull` times
/// what the link holds, and before that `kGrowing` times.
inline constexpr double kQueue = 1.125, kFull = 1.25, kGrowing = 2;
/// A packet counts for at least this share of a full one.
inline constexpr double kLeastPart = 0.125;
/// The least of what was measured is forgotten after this time, because a route may change.
inline constexpr std::chrono::nanoseconds kRemembered = std::chrono::seconds(10);
/// What one result adds to the smoothed length of results.
inline constexpr double kShareGain = 1.0 / 16;

// --- Losses

/// A packet counts as lost when this many later ones have been answered, and a rank's contribution when it
/// has made this many later ones. As in TCP: fewer may just have overtaken it.
inline constexpr std::size_t kLaterPackets = 3;
/// How finely time is divided, and the least and the most that a rank waits for an answer before it has been
/// doubled, and after that.
inline constexpr std::chrono::nanoseconds kTick = std::chrono::microseconds(25);
inline constexpr std::chrono::nanoseconds kLeastTimeout = std::chrono::microseconds(50);
inline constexpr std::chrono::nanoseconds kMostTimeout = std::chrono::milliseconds(50);
inline constexpr std::chrono::nanoseconds kMostBackoff = std::chrono::milliseconds(200);
/// How often a timeout may be doubled.
inline constexpr int kMostDoublings = 12;
/// Repetitions of one slot are mostly questions, which cost little, and most of its timeouts are the losses
/// of other ranks. So its timeout is not doubled each time.
inline constexpr int kTimeoutsForADoubling = 4;
/// A timeout may be as long as rounds usually take, but not longer than so many round trips of the network.
inline constexpr int kMostRoundTrips = 8;

}  // namespace nzcl::engine::slot_pool
