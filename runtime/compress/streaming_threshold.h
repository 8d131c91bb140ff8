// The threshold of the streaming top-k, which is carried from step to step.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace nzcl::compress {

/// Each step counts the magnitudes above its threshold and also those above a lower one, which is this share
/// of it. The two counts show how fast the count changes with the threshold.
inline constexpr float kLowerShare = 0.9f;
/// In the first steps of a state, the residual grows so fast that the threshold of one step says little about
/// the next. For this number of steps the threshold is found exactly.
inline constexpr std::uint64_t kSettlingSteps = 8;

/// What one step has counted: the magnitudes that reach its threshold, and those that reach the lower one.
struct ThresholdCounts {
  std::uint64_t reach = 0, reach_lower = 0;
};

/// Predicts each step's threshold from the step before, so that a top-k needs one pass. It is a controller
/// with a proportional and an integral part, which works on the logarithm of the threshold. The proportional
/// part corrects the error of the last count. The integral part (`drift`) follows the residual, which grows
/// as training goes on; without it the threshold would always lag behind. perf/results/compression.md
/// tells how the two constants were chosen.
struct StreamingThreshold {
  float next = 0;   // the threshold for the next step; 0: that step must find it exactly
  float last = 0;   // the threshold of the step before
  float drift = 0;  // how much the logarithm of the threshold grows in one step
  bool operator==(const StreamingThreshold&) const = default;

  /// Called after a step whose threshold was found exactly. `settling` says that it is one of the first
  /// steps, from which the drift is learned.
  void found(float threshold, bool settling) {
    if (settling && last > 0) drift = limited(0.9 * std::log(double{threshold} / double{last}));
    last = threshold;
    next = static_cast<float>(double{threshold} * std::exp(double{drift}));
  }

  /// Called after a step that used the predicted threshold.
  void predicted(float threshold, std::uint64_t wanted, const ThresholdCounts& counts) {
    constexpr double kProportional = 0.5, kIntegral = 0.3;
    const double off = off_by(wanted, counts);
    drift = limited(double{drift} + kIntegral * off);
    last = threshold;
    next = far_off(wanted, counts.reach)
               ? 0
               : static_cast<float>(double{threshold} * std::exp(kProportional * off + double{drift}));
  }

  /// Forgets everything. Called after a step whose threshold says nothing about the next one.
  void lost() { next = last = drift = 0; }

 private:
  /// One odd step must not make the drift run away.
  static float limited(double drift) { return static_cast<float>(std::clamp(drift, -0.5, 0.5)); }
  /// Whether the count was so wrong that the next threshold should be found exactly instead of corrected.
  static bool far_off(std::uint64_t wanted, std::uint64_t reach) {
    return reach > wanted + wanted / 2 || reach < wanted - wanted / 2;
  }
  /// The logarithm of the factor by which the threshold should have been larger, so that exactly `wanted`
  /// magnitudes had reached it. The two counts give a slope, log(count) over log(threshold), and the factor
  /// follows under the assumption that this slope is constant. The factor is limited to 1/2 .. 2.
  static double off_by(std::uint64_t wanted, const ThresholdCounts& counts) {
    // Counts may be 0, which has no logarithm. So one is added to each count.
    const double reach = static_cast<double>(counts.reach) + 1;
    const double lower = static_cast<double>(counts.reach_lower) + 1;
    const double slope = std::max(0.5, std::log(lower / reach) / -std::log(double{kLowerShare}));
    return std::clamp(std::log(reach / (static_cast<double>(wanted) + 1)) / slope, -std::log(2.0),
                      std::log(2.0));
  }
};

}  // namespace nzcl::compress
