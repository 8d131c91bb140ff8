// The exact threshold of a top-k: the k-th largest magnitude.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/compress/select.h"

namespace nzcl::compress {

/// Finds the k-th largest of many magnitudes in three rounds, each a histogram of some of their bits, from
/// the highest bits down. It keeps 16 KiB, and no magnitude.
///
///   for (rank.begin(k); !rank.done(); rank.end_round())  for all magnitudes: rank.add(span);
class MagnitudeRank {
 public:
  MagnitudeRank() : counts_(std::size_t{1} << kBits) {}

  void begin(std::uint64_t k);
  bool done() const { return shift_ < 0; }
  void add(std::span<const MagnitudeBits> magnitudes) noexcept;
  void end_round() noexcept;

  /// The k-th largest magnitude; 0 if there are fewer than k.
  MagnitudeBits threshold() const { return prefix_; }
  /// How many of the magnitudes that are equal to the threshold are among the k largest.
  std::uint64_t ties() const { return wanted_; }
  /// How many are equal to the threshold.
  std::uint64_t equal() const { return equal_; }

 private:
  static constexpr int kBits = 11;        // of a round
  static constexpr int kFirstShift = 20;  // 31 bits: those from 20 up, from 9 up, and the lowest 9
  std::vector<std::uint64_t> counts_;
  std::uint64_t wanted_ = 0;  // of the magnitudes with the prefix, so many are among the k largest
  std::uint64_t equal_ = 0;
  MagnitudeBits prefix_ = 0;  // the bits that are known; the others are 0
  int shift_ = -1;            // of the lowest bit of this round
  int above_ = 31;            // of the lowest bit that is known
};

}  // namespace nzcl::compress
