// Who sends which contributions to whom when every rank gathers those of all ranks. Pure functions.
#pragma once

#include <vector>

#include "runtime/plan/doubling_rounds.h"

namespace nzcl::engine {

/// One of the messages that every rank sends for each operation. To the rank `distance` after it, modulo the
/// number of ranks, go this rank's own contribution and those of the ranks just before it, `contributions` in
/// all. From the rank `distance` before it come as many in the same way: those of the ranks whose distances
/// are from `distance` on.
struct Leg {
  int distance = 0;
  int contributions = 0;
};

/// A schedule: its legs bring every rank the contribution of each other rank once, and no leg passes on what
/// an earlier leg has not brought.
using Schedule = std::vector<Leg>;

/// One hop: every rank sends its own contribution to every other one, and nothing is passed on.
inline Schedule one_hop_schedule(int ranks) {
  Schedule legs;
  for (int distance = 1; distance < ranks; ++distance) legs.push_back({distance, 1});
  return legs;
}

/// Doubling: in each round a rank passes on what it has, so that it has twice as much afterwards.
inline Schedule doubling_schedule(int ranks) {
  Schedule legs;
  for (int round = 0; round < doubling_rounds(ranks); ++round)
    legs.push_back({1 << round, entries_in_round(ranks, round)});
  return legs;
}

}  // namespace nzcl::engine
