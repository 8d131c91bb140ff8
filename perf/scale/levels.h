// The levels of a hierarchy in simulated time, as one rank sees them.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "perf/scale/communicator.h"
#include "perf/scale/timeline.h"
#include "runtime/comm/communicator/levels.h"

namespace perf::scale {

/// Takes the place of the library's communicators and of the thread that goes from one step to the next. The
/// sums that use it are those of the library. All objects outlive it.
class SimulatedLevels final : public nzcl::comm::Levels {
 public:
  using Communicators = std::array<std::unique_ptr<Communicator>, 3>;  // by Level; across may be missing

  /// `step`: what passes from the end of one step until the next one begins. `over`: called when a sum is.
  SimulatedLevels(nzcl::engine::HierarchyPlan plan, int number, Timeline& timeline,
                  const Communicators& communicators, Time step, std::uint64_t least_piece_bytes,
                  std::function<void()> over)
      : Levels(std::move(plan), number, {}, least_piece_bytes),
        timeline_(timeline),
        communicators_(communicators),
        step_(step),
        over_(std::move(over)) {
    open_steps();
  }

  void start(nzcl::comm::Level level, const nzcl::comm::Request& request, std::optional<nzcl::Failure>&,
             Next next) override {
    Communicator& communicator = *communicators_[static_cast<std::size_t>(level)];
    communicator.start(request,
                       [this, next, &communicator](const std::shared_ptr<nzcl::engine::Operation>& step) {
                         step->release_regions();
                         timeline_.call(communicator.clock() + step_, [next, step] { next(step); });
                       });
  }
  void over() override { over_(); }

 private:
  Timeline& timeline_;
  const Communicators& communicators_;
  const Time step_;
  const std::function<void()> over_;
};

}  // namespace perf::scale
