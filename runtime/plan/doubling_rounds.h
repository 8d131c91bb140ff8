// Who sends what to whom when contributions are gathered by doubling. Pure functions.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "runtime/plan/tuning.h"
#include "runtime/wire/batch.h"

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

/// The most bytes that a tensor and its bitmap may have together, so that every message fits a slot. 0 if
/// that leaves too little room for the reason of a refusal. Contributions end at multiples of 8. The sender's
/// own begins like any message, and those that are passed on lie behind a header of their own.
constexpr std::uint64_t doubling_bytes(int ranks, std::uint64_t slot_bytes) {
  const int entries = most_entries(ranks);
  const std::uint64_t fixed = wire::kMaxOverhead + (entries > 1 ? sizeof(wire::Header) : 0);
  if (entries == 0 || slot_bytes <= fixed) return 0;
  const std::uint64_t room = (slot_bytes - fixed) / static_cast<std::uint64_t>(entries) / 8 * 8;
  return room >= kLeastDoublingBytes + sizeof(wire::BatchEntry) ? room - sizeof(wire::BatchEntry) : 0;
}

}  // namespace nzcl::engine
