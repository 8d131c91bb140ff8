// A processor core of a simulated rank, and the lanes that it drives.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "perf/scale/timeline.h"
#include "runtime/lane/lane.h"

namespace perf::scale {

/// What the work of a core takes, in seconds. Of a message each of its two ends takes half.
struct CoreCosts {
  double network_message = 0, host_message = 0;
  double network_byte = 0;  // that is sent or received over the network
  double copied_byte = 0;   // that the rank copies into a message
  double read_byte = 0;     // of a message that came, which is summed or placed
  double contribution = 0;  // of a rank that is gathered by doubling: checked, passed on and summed
  double round = 0;         // of a lane, whatever it does
};

/// Makes a round of each of its lanes that may have something to do, one after the other. What a round does
/// is counted, and takes its time before the next one.
class Core final : public Happening {
 public:
  /// `coarseness`: for how many bytes each byte of values stands.
  Core(Timeline& timeline, const CoreCosts& costs, double coarseness)
      : timeline_(timeline), costs_(costs), coarseness_(coarseness) {}

  /// The number that the lane which is made next will have.
  std::size_t next_lane() const { return lanes_.size(); }
  /// Drives the lane from now on, and calls `driven` after each of its rounds. Both outlive the last round.
  void add(nzcl::engine::Lane& lane, std::function<void()> driven);

  /// Lets the lane have a round as soon as the core is free.
  void wake(std::size_t lane);
  void happen() override;

  // --- For those whose work it is.
  /// What time it is for what the core does now: that of the simulation, and what was done since in this
  /// round.
  Time clock() const { return clock_ > timeline_.now() ? clock_ : timeline_.now(); }
  const CoreCosts& costs() const { return costs_; }
  void charge(double seconds) { clock_ += scale::seconds(seconds); }
  /// Charges what the lane that is driven has copied and read since the last time.
  void charge_bytes();

 private:
  struct Driven {
    nzcl::engine::Lane* lane;
    std::function<void()> driven;
    bool ready = false;
    std::uint64_t copied = 0, read = 0;  // that were charged
  };
  void schedule();

  Timeline& timeline_;
  const CoreCosts costs_;
  const double coarseness_;
  std::vector<Driven> lanes_;
  Driven* at_ = nullptr;  // the one that is driven now
  Time clock_{};          // and, between rounds, when the core is free
  bool scheduled_ = false;
};

}  // namespace perf::scale
