// Chooses between two ways of doing a step by trying both.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <vector>

namespace nzcl_torch {

/// How the dense buckets of a step travel.
enum class Way { dense, compressed };

/// Tries both ways in turn, so that a machine that becomes slower meanwhile slows down both, and then takes
/// the one that gets further in the same time on the rank that was slowest. It has no clock and does not
/// communicate: the caller says how long steps took, and what all ranks found. One thread at a time may use
/// it.
class WaySelector {
 public:
  /// Times are in seconds, one for each way.
  using Times = std::array<double, 2>;

  /// `tries` is the number of steps each way that are timed, at least 1. With compression a model needs
  /// `more_steps` times as many steps: compressed ones have to be so many times faster.
  explicit WaySelector(int tries, double more_steps = 1)
      : tries_(static_cast<std::size_t>(tries)), more_steps_(more_steps) {}

  /// The way of the next step.
  Way next() const { return chosen_ ? *chosen_ : begun_ % 2 == 0 ? Way::dense : Way::compressed; }
  /// A step by next() is over. The first of each way makes memory ready, and does not count.
  void took(double seconds) {
    if (chosen_) return;
    if (begun_ >= 2) times_[begun_ % 2].push_back(seconds);
    ++begun_;
  }
  /// Whether all tries are over and no way has been chosen yet.
  bool must_choose() const { return !chosen_ && times_[1].size() == tries_; }
  /// This rank's median of each way.
  Times medians() const { return {median(times_[0]), median(times_[1])}; }
  /// `slowest`: the largest medians of all ranks, the same on every rank.
  void choose(const Times& slowest) {
    choose(more_steps_ * slowest[1] < slowest[0] ? Way::compressed : Way::dense);
  }
  void choose(Way way) { chosen_ = way; }
  std::optional<Way> chosen() const { return chosen_; }

 private:
  static double median(std::vector<double> times) {
    if (times.empty()) return 0;
    const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
    std::nth_element(times.begin(), middle, times.end());
    return *middle;
  }

  std::size_t tries_;
  double more_steps_;
  std::size_t begun_ = 0;  // steps that are over
  std::array<std::vector<double>, 2> times_;
  std::optional<Way> chosen_;
};

}  // namespace nzcl_torch
