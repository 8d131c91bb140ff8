// The threshold of the streaming top-k, which is carried from step to step.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace nzcl::compress {

/// The second threshold at which a step counts, as a share of the first.
inline constexpr float kLowerShare = 0.9f;
/// In so many steps after the first, the residual grows so fast that nothing can be carried over.
inline constexpr std::uint64_t kSettlingSteps = 8;

/// What one step has seen: how many magnitudes reach its threshold, and how many kLowerShare of it.
struct ThresholdCounts {
  std::uint64_t reach = 0, reach_lower = 0;
};

/// Predicts thresholds. The logarithm of the threshold follows the counts as a controller with a
/// proportional and an integral part: the residual grows as training goes on, and without the second part
/// the threshold would always be late. perf/results/ has how the two constants were chosen.
struct StreamingThreshold {
  float next = 0;   // for the next step; 0: it must be found exactly
  float last = 0;   // of the step before
  float drift = 0;  // by which its logarithm grows in a step
  bool operator==(const StreamingThreshold&) const = default;

  /// After a step in which the threshold was found exactly. `settling`: one of the first steps.
  void found(float threshold, bool settling) {
    if (settling && last > 0) drift = limited(0.9 * std::log(double{threshold} / double{last}));
    last = threshold;
    next = static_cast<float>(double{threshold} * std::exp(double{drift}));
  }

  /// After a step with the threshold that was predicted.
  void predicted(float threshold, std::uint64_t wanted, const ThresholdCounts& counts) {
    constexpr double kProportional = 0.5, kIntegral = 0.3;
    const double off = off_by(wanted, counts);
    drift = limited(double{drift} + kIntegral * off);
    last = threshold;
    next = far_off(wanted, counts.reach)
               ? 0
               : static_cast<float>(double{threshold} * std::exp(kProportional * off + double{drift}));
  }

  /// The step says nothing about the next one.
  void lost() { next = last = drift = 0; }

 private:
  static float limited(double drift) { return static_cast<float>(std::clamp(drift, -0.5, 0.5)); }
  /// Too far to be corrected.
  static bool far_off(std::uint64_t wanted, std::uint64_t reach) {
    return reach > wanted + wanted / 2 || reach < wanted - wanted / 2;
  }
  /// The logarithm of what the threshold has to be multiplied with, so that `wanted` magnitudes would have
  /// reached it, if the logarithm of their number is linear in it with the slope that the counts show. It is
  /// at most that of 2, up or down.
  static double off_by(std::uint64_t wanted, const ThresholdCounts& counts) {
    // One more on both sides, so that small counts need no case of their own.
    const double reach = static_cast<double>(counts.reach) + 1;
    const double lower = static_cast<double>(counts.reach_lower) + 1;
    const double slope = std::max(0.5, std::log(lower / reach) / -std::log(double{kLowerShare}));
    return std::clamp(std::log(reach / (static_cast<double>(wanted) + 1)) / slope, -std::log(2.0),
                      std::log(2.0));
  }
};

}  // namespace nzcl::compress
