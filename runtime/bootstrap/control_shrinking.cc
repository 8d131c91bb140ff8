// How the members that are left of a communicator agree who they are: the control plane carries what
// ShrinkBoard decides and what members say about themselves.
#include <fmt/format.h>

#include <string>
#include <utility>

#include "runtime/bootstrap/star_control.h"

namespace nzcl::bootstrap {
namespace {

// How long the hub waits for a death that explains why a member could not join an attempt.
constexpr std::chrono::seconds kReasonTime{1};

}  // namespace

/// A hub gets verdicts from itself, and from members for which it has been silent too long. These go on
/// without it.
void StarControl::shrink_frame(std::size_t index, const ShrinkFrame& frame) {
  switch (frame.kind) {
    case ShrinkFrame::Kind::state:
      if (is_hub()) take_shrink_state(index, frame.state);
      return;
    case ShrinkFrame::Kind::verdict:
      if (shrinking_.take(frame.verdict)) asio::post(io_, [this] { say_shrink_state(); });
      if (frame.verdict.kind == ShrinkVerdict::Kind::refuse && index != static_cast<std::size_t>(self_))
        set_failure(frame.verdict.failure);
      return;
    case ShrinkFrame::Kind::place:
      return shrinking_.take_place(frame.attempt, frame.place);
  }
}

/// Tells the hub how far this member is. If there is no hub any more, one is looked for, and told then.
void StarControl::say_shrink_state() {
  if (shut_) return;
  ShrinkState state = shrinking_.state();
  if (is_hub()) return take_shrink_state(static_cast<std::size_t>(self_), std::move(state));
  if (ControlConnection* const hub = to_hub()) {
    hub->send_bytes(encode(ShrinkFrame::of(std::move(state))));
  } else {
    look_for_hub();
  }
}

/// On the hub.
void StarControl::take_shrink_state(std::size_t index, ShrinkState state) {
  shrink_board_.said(index, std::move(state));
  decide_shrinking();
}

/// On the hub: carries out what follows from what members have said, and from who has died. A communicator
/// that has not failed fails before its members make a smaller one.
void StarControl::decide_shrinking() {
  if (shut_ || !is_hub() || !settled_) return;
  for (const ShrinkBoard::Order& order : shrink_board_.decide()) {
    const bool begins = order.frame.kind == ShrinkFrame::Kind::verdict &&
                        order.frame.verdict.kind == ShrinkVerdict::Kind::begin;
    if (begins) fail({ErrorCode::aborted, "the communicator was shrunk to other members"});
    for (const std::size_t i : order.to) {
      if (i == static_cast<std::size_t>(self_)) {
        shrink_frame(i, order.frame);
      } else if (members_[i].connection && !members_[i].gone) {
        members_[i].connection->send_bytes(encode(order.frame));
      }
    }
  }
  look_for_reason();
}

/// On the hub: if a member could not join an attempt, waits for a death that explains it. Without one the
/// attempt fails, because another one would fail as well.
void StarControl::look_for_reason() {
  const auto attempt = shrink_board_.unexplained();
  if (!attempt || reason_time_) return;
  reason_time_.emplace(io_, kReasonTime);
  reason_time_->async_wait([this, attempt = *attempt](const asio::error_code& error) {
    reason_time_.reset();
    if (error || shut_) return;
    shrink_board_.nothing_explains(attempt);
    decide_shrinking();
  });
}

/// The hub does not answer, perhaps because it is stopped. When it goes on, it finds that it has been left
/// out. The same holds for the member that is to take the place of a dead hub, but that one cannot be told.
void StarControl::drop_hub() {
  if (is_hub()) return;
  ControlConnection* const hub = to_hub();
  if (hub == nullptr) {
    if (looking_for_hub_) mark_gone(candidate_, false);
    return;
  }
  const auto position = static_cast<std::size_t>(hub_);
  hub->send_bytes(encode(ShrinkFrame::of(ShrinkVerdict{
      .kind = ShrinkVerdict::Kind::refuse,
      .attempt = 0,
      .members = {},
      .failure = {ErrorCode::aborted,
                  fmt::format("shrink: {} was left out, because it did not answer", names_[position])}})));
  hub->finish();
  mark_gone(position, false);
}

}  // namespace nzcl::bootstrap
