// How whoever makes something ready wakes the lane that waits for it.
#pragma once

namespace nzcl::engine {

/// The bells of a member's lanes. An operation rings when something becomes ready that one lane waits for and
/// another thread does: a piece of a packed result whose place depends on other lanes, or a slice that is
/// scanned or made elsewhere. It outlives the operation. Thread-safe.
class LaneBells {
 public:
  /// Makes the lane look once more at what it waits for, even if it sleeps. The caller has made that ready
  /// before.
  virtual void ring(int lane) noexcept = 0;

 protected:
  ~LaneBells() = default;
};

}  // namespace nzcl::engine
