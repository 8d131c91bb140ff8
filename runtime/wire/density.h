// How dense a tensor is expected to be, in 16 bits.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace nzcl::wire {

/// The share of a rank's blocks that are expected not to be zero, or that nothing is known of it. It is
/// rounded by less than two parts in ten thousand: code c stands for 2^((c - 65535) / 2048), and 0 for
/// unknown. So every code is valid. Ranks that name the same share have the same code, and what is predicted
/// from a density is predicted from its code, so it is the same on all of them.
class Density {
 public:
  Density() = default;
  /// 0 stands for unknown. Precondition: 0 <= share <= 1. Shares below the least one that has a code count as
  /// that one.
  static Density of_share(double share) {
    if (share <= 0) return {};
    const double code = kAll + kSteps * std::log2(share);
    return of_code(static_cast<std::uint16_t>(std::lround(std::clamp(code, 1.0, kAll))));
  }
  static Density of_code(std::uint16_t code) {
    Density d;
    d.code_ = code;
    return d;
  }

  bool known() const { return code_ != 0; }
  std::uint16_t code() const { return code_; }
  /// Precondition: known().
  double share() const { return std::exp2((code_ - kAll) / kSteps); }

  friend bool operator==(const Density&, const Density&) = default;

 private:
  static constexpr double kAll = 65535, kSteps = 2048;  // the code of 1, and codes for each factor of two
  std::uint16_t code_ = 0;
};

}  // namespace nzcl::wire
