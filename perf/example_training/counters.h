// What a training run counts.
#pragma once

#include <array>
#include <bit>

namespace train {

/// The counters can be added and subtracted, so that there are counters of an interval and of all ranks. All
/// are doubles, so that one allreduce sums them.
struct Counters {
  double steps = 0;
  double words = 0;  ///< centre words trained on
  double pairs = 0;
  double loss = 0;  ///< summed over the pairs
  double seconds = 0;
  double communication_seconds = 0;  ///< waiting for nzcl, which includes waiting for a slower rank
  double blocks = 0;                 ///< rows of the tables that were reduced
  double input_blocks = 0;           ///< of these, rows that this rank sent
  double union_blocks = 0;           ///< rows of the sum
  double wire_bytes = 0;             ///< sent to other processes, headers and bitmaps included
  double coded_bytes = 0;            ///< that a rank wrote upwards for compressed gradients, with headers

  using Values = std::array<double, 11>;
  Values values() const { return std::bit_cast<Values>(*this); }
  static Counters from(const Values& values) { return std::bit_cast<Counters>(values); }

  double mean_loss() const { return pairs > 0 ? loss / pairs : 0; }
  double communication_share() const { return communication_seconds / seconds; }
  double input_density() const { return input_blocks / blocks; }
  double union_density() const { return union_blocks / blocks; }
};

inline Counters operator-(const Counters& later, const Counters& earlier) {
  Counters::Values difference = later.values();
  for (std::size_t i = 0; i < difference.size(); ++i) difference[i] -= earlier.values()[i];
  return Counters::from(difference);
}

/// The whole job's counters, from the sum over `ranks` ranks: rates per second then count all ranks' words.
inline Counters of_the_job(Counters sum, int ranks) {
  sum.steps /= ranks;
  sum.seconds /= ranks;
  sum.communication_seconds /= ranks;
  return sum;
}

}  // namespace train
