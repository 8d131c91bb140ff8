// One member's part in regrouping: what it knows, and what follows from the hub's verdicts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/bootstrap/regroup_frames.h"

namespace nzcl::bootstrap {

/// A state machine without I/O, for one thread. README.md shows the stages.
class RegroupMember {
 public:
  /// What this member tells to the hub.
  const RegroupState& state() const { return state_; }
  /// Why a call may not begin, or nothing.
  std::optional<Failure> what_forbids() const;

  // --- What the caller does
  void ready(RegroupWish wish);
  void built() { set_stage(RegroupState::Stage::built); }
  void failed(Failure why);
  /// Ends the call.
  void away() { set_stage(RegroupState::Stage::away); }
  void late() { state_.late = true; }
  void tell_place(std::string place) { state_.place = std::move(place); }

  // --- What the hub says
  /// Returns true if the hub has to be told the state.
  bool take(const RegroupVerdict& verdict);

  // --- What follows
  bool is_in(std::uint64_t attempt) const {
    return state_.attempt == attempt && closed_ < attempt && !refused_;
  }
  bool has_begun() const { return state_.stage == RegroupState::Stage::building; }
  bool is_committed() const { return state_.stage == RegroupState::Stage::committed; }
  /// Why the call fails.
  const std::optional<Failure>& refused() const { return refused_; }

 private:
  void set_stage(RegroupState::Stage stage) {
    state_.stage = stage;
    state_.late = false;
  }

  RegroupState state_;
  std::uint64_t closed_ = 0;        // the last attempt that is known to be closed
  std::optional<Failure> refused_;  // the present call
  std::optional<Failure> out_;      // every later call: this member has been left out
};

}  // namespace nzcl::bootstrap
