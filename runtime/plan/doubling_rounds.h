// Who sends what to whom when contributions are gathered by doubling. Pure functions.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "runtime/plan/tuning.h"
#include "runtime/wire/batch.h"
#include "runtime/wire/refusal.h"

namespace nzcl::engine {

/// How many rounds `ranks` ranks need: log2 of their number, rounded up. In round k, rank r sends to rank
/// r + 2^k, and receives from rank r - 2^k, modulo the number of ranks.
constexpr int doubling_rounds(int ranks) {
  return std::bit_width(static_cast<unsigned>(std::max(ranks, 1)) - 1);
}

/// How many contributions a rank sends in a round. At the beginning of round k it has 2^k of them: its own,
/// and those of the ranks before it. In the last round the receiver lacks fewer than that, and gets only
/// these.
constexpr int entries_in_round(int ranks, int round) { return std::min(1 << round, ranks - (1 << round)); }

/// The most contributions in one batch.
constexpr int most_entries(int ranks) {
  const int rounds = doubling_rounds(ranks);
  int most = 0;
  for (int k = 0; k < rounds; ++k) most = std::max(most, entries_in_round(ranks, k));
  return most;
}

/// Returns the round in which a rank gets a message from the rank that is `distance` before it, modulo the
/// number of ranks, or -1 if there is no such round.
constexpr int round_of_distance(int ranks, int distance) {
  const bool power = distance > 0 && distance < ranks && std::has_single_bit(static_cast<unsigned>(distance));
  return power ? std::countr_zero(static_cast<unsigned>(distance)) : -1;
}

/// What a batch has beside its contributions. The sender's own begins like any message, and those that are
/// passed on lie behind a header of their own.
constexpr std::uint64_t doubling_overhead(int ranks) {
  return wire::kMaxOverhead + (most_entries(ranks) > 1 ? sizeof(wire::Header) : 0);
}
/// What it needs where not every contribution has room for the reason of a refusal: that of the sender, and
/// the one that is passed on.
inline constexpr std::uint64_t kDoublingReasons = 2 * wire::kMostRefusalText;

/// The most bytes that a tensor and its bitmap may have together, so that every message fits a slot. 0 if
/// there is no room for an element and its bitmap. Contributions end at multiples of 8.
constexpr std::uint64_t doubling_bytes(int ranks, std::uint64_t slot_bytes) {
  constexpr std::uint64_t kEntry = sizeof(wire::BatchEntry), kLeast = 2 * sizeof(std::uint64_t);
  const auto entries = static_cast<std::uint64_t>(most_entries(ranks));
  const std::uint64_t fixed = doubling_overhead(ranks);
  const auto room_beside = [&](std::uint64_t beside) {
    return entries == 0 || slot_bytes <= beside ? 0 : (slot_bytes - beside) / entries / 8 * 8;
  };
  if (const std::uint64_t room = room_beside(fixed); room >= kLeastDoublingBytes + kEntry)
    return room - kEntry;
  const std::uint64_t room = room_beside(fixed + kDoublingReasons);
  return room >= kLeast + kEntry ? room - kEntry : 0;
}

/// The size of slots among many ranks.
constexpr std::uint64_t doubling_slot_bytes_of_many(int ranks) {
  const std::uint64_t entries = static_cast<std::uint64_t>(most_entries(ranks)) * kDoublingEntryOfMany;
  return std::max(kDoublingSlotBytes, (doubling_overhead(ranks) + kDoublingReasons + entries + 63) / 64 * 64);
}

}  // namespace nzcl::engine
