// The exact threshold of a top-k: the k-th largest magnitude.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/compress/select.h"

namespace nzcl::compress {

/// Finds the k-th largest of many magnitudes without keeping them. In each of three rounds the caller shows
/// it all magnitudes, and it counts in a histogram of 16 KiB how often each value of some bits occurs, from
/// the highest bits down. After a round these bits of the k-th largest are known.
///
///   for (rank.begin(k); !rank.done(); rank.end_round())  for all magnitudes: rank.add(span);
class MagnitudeRank {
 public:
  MagnitudeRank() : counts_(std::size_t{1} << kBits) {}

  void begin(std::uint64_t k);
  bool done() const { return shift_ < 0; }
  void add(std::span<const MagnitudeBits> magnitudes) noexcept;
  void end_round() noexcept;

  /// All rounds at once, for magnitudes that are all at hand.
  void find(std::uint64_t k, std::span<const MagnitudeBits> magnitudes) {
    for (begin(k); !done(); end_round()) add(magnitudes);
  }

  /// The k-th largest magnitude; 0 if there are fewer than k.
  MagnitudeBits threshold() const { return prefix_; }
  /// How many of the magnitudes that are equal to the threshold are among the k largest.
  std::uint64_t ties() const { return wanted_; }
  /// How many are equal to the threshold.
  std::uint64_t equal() const { return equal_; }

 private:
  // A magnitude has 31 bits. The rounds look at bits 20 to 30, 9 to 19, and 0 to 8.
  static constexpr int kBits = 11;  // the bits of a round are at most this many
  static constexpr int kFirstShift = 20;
  std::vector<std::uint64_t> counts_;  // the round's histogram
  std::uint64_t wanted_ = 0;  // how many of the magnitudes that begin with prefix_ are among the k largest
  std::uint64_t equal_ = 0;
  MagnitudeBits prefix_ = 0;  // the upper bits of the k-th largest that are known; the others are 0
  int shift_ = -1;            // the lowest bit that this round looks at; -1 when the search is over
  int above_ = 31;            // the lowest bit that is known; 31 before the first round
};

}  // namespace nzcl::compress
