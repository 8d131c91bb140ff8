// The communicators that are being split off from one.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/base/failure.h"
#include "runtime/bootstrap/control.h"

namespace nzcl::comm {

/// The control planes of children whose members have met, and have not all said yet that they are ready. They
/// have no operations that could time out, so it is the parent's failure that tells them of a member that is
/// silent. A child without such a member outlives its parent, so it is given some time to become ready. Calls
/// may come from any thread.
class JoiningChildren {
 public:
  /// The parent has failed, and so do the children that are here, or come later, and are not ready in time.
  void fail(const Failure& failure) {
    const std::scoped_lock lock(mutex_);
    failure_ = failure;
    for (const auto& child : children_) child->abort_after(kTimeToBecomeReady, failure);
  }

  /// The child is here as long as this lives.
  class Place {
   public:
    Place(JoiningChildren& all, std::shared_ptr<bootstrap::ControlPlane> child)
        : all_(all), child_(std::move(child)) {
      const std::scoped_lock lock(all_.mutex_);
      if (all_.failure_) child_->abort_after(kTimeToBecomeReady, *all_.failure_);
      all_.children_.push_back(child_);
    }
    ~Place() {
      const std::scoped_lock lock(all_.mutex_);
      std::erase(all_.children_, child_);
      child_->do_not_abort();
    }
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;

   private:
    JoiningChildren& all_;
    const std::shared_ptr<bootstrap::ControlPlane> child_;
  };

 private:
  static constexpr std::chrono::seconds kTimeToBecomeReady{2};

  std::mutex mutex_;
  std::vector<std::shared_ptr<bootstrap::ControlPlane>> children_;
  std::optional<Failure> failure_;
};

}  // namespace nzcl::comm
