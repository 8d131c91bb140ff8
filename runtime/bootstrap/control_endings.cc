// How a communicator fails, and how its members leave.
#include <fmt/format.h>

#include <utility>

#include "runtime/base/json_text.h"
#include "runtime/bootstrap/star_control.h"

namespace nzcl::bootstrap {
namespace {

// How long the hub waits after a transport has reported a lost peer. A process that dies frees its memory
// before its sockets are closed, so the transport may notice the death first, often without knowing who died.
// The closed connection, a moment later, tells which member it was.
constexpr std::chrono::seconds kSuspicionTime{1};
// How long a member that has reported a failure waits for what the hub says. It is longer than the hub waits
// itself.
constexpr std::chrono::seconds kVerdictTime{3};
static_assert(kVerdictTime > kSuspicionTime);
// How often a member looks whether its operations are over that all members have joined.
constexpr std::chrono::milliseconds kSettlePause{5};

}  // namespace

void StarControl::abort(Failure failure) {
  asio::post(io_, [this, failure = std::move(failure)]() mutable {
    is_hub() ? report(std::move(failure)) : report_to_hub(std::move(failure));
  });
}

void StarControl::abort_after(std::chrono::nanoseconds time, Failure failure) {
  asio::post(io_, [this, time, failure = std::move(failure)] {
    if (shut_ || abort_time_) return;
    abort_time_.emplace(io_, time);
    abort_time_->async_wait([this, failure](const asio::error_code& error) {
      if (!error && !shut_) abort(failure);
    });
  });
}

void StarControl::do_not_abort() {
  asio::post(io_, [this] {
    if (abort_time_) abort_time_->cancel();
  });
}

std::optional<Failure> StarControl::failure() const {
  const std::scoped_lock lock(mutex_);
  return failure_;
}

void StarControl::lost(std::size_t index, const std::string& why, bool vanished) {
  const Member& m = members_[index];
  mark_gone(index, !vanished && !m.gone);
  if (shut_) return;
  const bool left = is_set(all_bye_) || (is_hub() && m.bye && !serves(index));  // in good order
  if (!left) {
    const std::string text =
        named_ ? fmt::format("{} died: {}", names_[index], why)
               : fmt::format("{} left the meeting at {}: {}", names_[index], me_.point_name, why);
    const Failure failure{ErrorCode::peer_failed, text};
    is_hub() ? fail(failure) : set_failure(failure);
  }
  if (is_hub()) {
    check_all();
    check_leaves();
    return decide_regrouping();
  }
  if (vanished && settled_) host_vanished(addresses_[index].host_id);
  look_for_hub();
}

/// A member that is gone takes part in nothing any more.
void StarControl::mark_gone(std::size_t position, bool for_certain) {
  Member& m = members_[position];
  m.gone = true;
  m.dead = m.dead || for_certain;
  leaves_.gone(position);
  regroup_board_.gone(position, m.dead);
}

/// On the hub, when a member has reported a failure. A transport's report of a lost peer is only a
/// suspicion for kSuspicionTime: if a connection closes within this time, the death of that member is the
/// failure (see lost()).
void StarControl::report(Failure failure) {
  if (failure.code != ErrorCode::peer_failed) return fail(std::move(failure));
  if (shut_ || is_failed() || suspicion_) return;
  suspicion_.emplace(io_, kSuspicionTime);
  suspicion_->async_wait([this, failure = std::move(failure)](const asio::error_code& error) mutable {
    if (!error && !shut_) fail(std::move(failure));
  });
}

/// On another member. A hub that is stopped keeps its connections open and answers nothing. Then this
/// member fails by itself, as all others will do that find the failure as well.
void StarControl::report_to_hub(Failure failure) {
  ControlConnection* const hub = to_hub();
  if (hub == nullptr || is_failed()) return;
  hub->send({{"type", "abort"}, {"code", static_cast<int>(failure.code)}, {"text", failure.text}});
  if (verdict_) return;
  verdict_.emplace(io_, kVerdictTime);
  verdict_->async_wait([this, failure = std::move(failure)](const asio::error_code& error) mutable {
    if (error || shut_) return;
    failure.text += fmt::format(" (and {}, which should tell this to all, does not answer)",
                                names_[static_cast<std::size_t>(hub_)]);
    set_failure(failure);
  });
}

/// On the hub: tells all members of the failure, if it is the communicator's first.
void StarControl::fail(Failure failure) {
  if (is_failed()) return;
  broadcast({{"type", "failed"}, {"code", static_cast<int>(failure.code)}, {"text", failure.text}});
  set_failure(failure);
}

void StarControl::set_failure(const Failure& failure) {
  {
    const std::scoped_lock lock(mutex_);
    if (failure_) return;
    failure_ = {failure.code, valid_utf8(failure.text)};  // the same text that the other members receive
  }
  failed_.store(true, std::memory_order_release);
  changed_.notify_all();
  board_.clear();
  calls_.close();
  on_failure_();
  if (!replaced_) note_failure();
}

/// On the hub. A member that serves is in gathers until all others have left, no matter what it says.
void StarControl::said_bye(std::size_t index, std::uint64_t begun) {
  members_[index].bye = true;
  if (!serves(index)) {
    send_answers(board_.left(index));
    if (leaves_.left(index, begun)) tell_all("left", leaves_.limit());
  }
  check_all();
  check_leaves();
}

/// On the hub: asks all members to finish what can complete, if one of them wants more, and fails when they
/// have done so.
void StarControl::check_leaves() {
  if (is_failed() || is_set(all_bye_) || !leaves_.exceeded()) return;
  if (asked_ != leaves_.limit()) {
    asked_ = leaves_.limit();
    tell_all("finish", *asked_);
  }
  if (auto failure = leaves_.failure()) fail(std::move(*failure));
}

/// Tells the hub if this member wants an operation that a member which has left did not join.
void StarControl::check_wanted() {
  const std::uint64_t wanted = progress_().wanted;
  if (wanted > limit_.load(std::memory_order_relaxed)) tell_hub("wants", wanted);
}

/// Tells the hub when the first `operations` operations are over.
asio::awaitable<void> StarControl::finish(std::uint64_t operations) {
  while (!shut_ && !is_failed()) {
    if (progress_().finished >= operations) co_return tell_hub("finished", operations);
    asio::steady_timer pause(io_, kSettlePause);
    co_await pause.async_wait(asio::use_awaitable);
  }
}

void StarControl::say_quiet() {
  members_[static_cast<std::size_t>(self_)].quiet = true;
  is_hub() ? check_all() : tell_hub_quiet();
}

/// On the hub: if all living members are quiet, or have said goodbye, tells all members so.
void StarControl::check_all() {
  const auto all = [this](bool Member::*flag) {
    for (const Member& m : members_) {
      if (!(m.*flag) && !m.gone) return false;
    }
    return true;
  };
  if (!is_set(all_quiet_) && (is_failed() || is_set(all_bye_)) && all(&Member::quiet)) {
    broadcast({{"type", "all_quiet"}});
    set_flag(all_quiet_);
  }
  if (!is_set(all_bye_) && all(&Member::bye)) {
    broadcast({{"type", "all_bye"}});
    all_left();
  }
}

/// Gathers end before leave() returns, so that a gather that is begun afterwards finds nobody.
void StarControl::all_left() {
  board_.clear();
  calls_.close();
  set_flag(all_bye_);
}

}  // namespace nzcl::bootstrap
