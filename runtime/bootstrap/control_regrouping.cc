// How the members of a communicator agree who is in the one that takes its place: the control plane carries
// what RegroupBoard decides and what members say about themselves.
#include <fmt/format.h>

#include <string>
#include <utility>

#include "runtime/bootstrap/star_control.h"

namespace nzcl::bootstrap {
namespace {

// How long the hub waits for a death that explains why a member could not join an attempt.
constexpr std::chrono::seconds kReasonTime{1};

Failure replaced() {
  return {ErrorCode::aborted, "another communicator takes the place of this one, by shrink() or grow()"};
}

/// Whether this is the moment from which on the old communicator is of no use any more.
bool replaces(const RegroupFrame& frame) {
  if (frame.kind != RegroupFrame::Kind::verdict) return false;
  using Kind = RegroupVerdict::Kind;
  return frame.verdict.kind == Kind::commit || (frame.verdict.kind == Kind::begin && frame.verdict.grow == 0);
}

}  // namespace

/// A hub gets verdicts from itself, and from members for which it has been silent too long. These go on
/// without it, and so have all others to do.
void StarControl::regroup_frame(std::size_t index, const RegroupFrame& frame) {
  switch (frame.kind) {
    case RegroupFrame::Kind::state:
      if (is_hub()) take_regroup_state(index, frame.state);
      return;
    case RegroupFrame::Kind::verdict:
      if (regrouping_.take(frame.verdict)) asio::post(io_, [this] { say_regroup_state(); });
      if (frame.verdict.kind == RegroupVerdict::Kind::leave_out && index != static_cast<std::size_t>(self_)) {
        set_failure(frame.verdict.failure);
        if (is_hub()) resign();
      }
      return;
    case RegroupFrame::Kind::place:
      return regrouping_.take_place(frame.attempt, frame.place);
  }
}

/// Tells the hub how far this member is. If there is no hub any more, one is looked for, and told then.
void StarControl::say_regroup_state() {
  if (shut_) return;
  RegroupState state = regrouping_.state();
  if (is_hub()) return take_regroup_state(static_cast<std::size_t>(self_), std::move(state));
  if (ControlConnection* const hub = to_hub()) {
    hub->send_bytes(encode(RegroupFrame::of(std::move(state))));
  } else {
    look_for_hub();
  }
}

/// On the hub.
void StarControl::take_regroup_state(std::size_t index, RegroupState state) {
  regroup_board_.said(index, std::move(state));
  decide_regrouping();
}

/// On the hub: carries out what follows from what members have said, and from who has died. A communicator
/// that has not failed fails before its members make a smaller one, and when they have made a larger one.
void StarControl::decide_regrouping() {
  if (shut_ || !is_hub() || !settled_) return;
  for (const RegroupBoard::Order& order : regroup_board_.decide()) {
    if (replaces(order.frame)) replace();
    for (const std::size_t i : order.to) {
      if (i == static_cast<std::size_t>(self_)) {
        regroup_frame(i, order.frame);
      } else if (members_[i].connection && !members_[i].gone) {
        members_[i].connection->send_bytes(encode(order.frame));
      }
    }
  }
  if (regroup_board_.awaits_servers()) replace();
  look_for_reason();
}

/// Who would grow the communicator is told.
void StarControl::note_failure() {
  if (const auto why = failure()) regroup_board_.failed(*why);
  if (is_hub()) asio::post(io_, [this] { decide_regrouping(); });
}

void StarControl::replace() {
  replaced_ = true;
  fail(replaced());
}

/// On the hub: if a member could not join an attempt, waits for a death that explains it. Without one the
/// attempt fails, because another one would fail as well.
void StarControl::look_for_reason() {
  const auto attempt = regroup_board_.unexplained();
  if (!attempt || reason_time_) return;
  reason_time_.emplace(io_, kReasonTime);
  reason_time_->async_wait([this, attempt = *attempt](const asio::error_code& error) {
    reason_time_.reset();
    if (error || shut_) return;
    regroup_board_.nothing_explains(attempt);
    decide_regrouping();
  });
}

}  // namespace nzcl::bootstrap
