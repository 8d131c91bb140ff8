#include "runtime/bootstrap/regrouping.h"

#include <utility>

#include "nzcl/error.h"

namespace nzcl::bootstrap {
namespace {

// How much longer than its deadline a member waits for the verdict on an attempt: all members may have used
// up theirs, and the hub tells the first reason only after a moment.
constexpr std::chrono::seconds kVerdictTime{5};
// How long it may take until the hub has decided when this member's deadline has come. The hub may be silent,
// and so may be the first that is to take its place. To go on without one of them takes up to 23 seconds.
constexpr std::chrono::seconds kDecisionTime{60};

Deadline later(Deadline deadline, std::chrono::seconds time) {
  return deadline > Deadline::max() - time ? deadline : deadline + time;
}

}  // namespace

/// At the deadline the hub is told that it has come; the verdict follows from that. A hub that does not
/// answer is replaced.
template <typename Done>
void Regrouping::wait_for(std::unique_lock<std::mutex>& lock, Done done, Deadline deadline) {
  const auto over = [&] { return done() || member_.refused(); };
  const auto tell = [&](const std::function<void()>& hook) {
    lock.unlock();
    hook();
    lock.lock();
  };
  if (!changed_.wait_until(lock, deadline, over)) {
    member_.late();
    tell(hooks_.tell_hub);
    tell(hooks_.ask_hub);
    changed_.wait_for(lock, kDecisionTime, over);
  }
  throw_if_refused();
  if (!done())
    throw Error(ErrorCode::timeout,
                "no member of the communicator decides who is in the one that is to take its place");
}

void Regrouping::throw_if_refused() const {
  if (const auto& why = member_.refused()) throw Error(why->code, why->text);
}

void Regrouping::enter() {
  const std::scoped_lock lock(mutex_);
  if (entered_)
    throw Error(ErrorCode::invalid_usage,
                "another thread makes a communicator that is to take the place of this one");
  if (const auto why = member_.what_forbids()) throw Error(why->code, why->text);
  entered_ = true;
}

void Regrouping::leave() {
  {
    const std::scoped_lock lock(mutex_);
    entered_ = false;
    if (member_.is_committed()) return;
    member_.away();
  }
  hooks_.tell_hub();
}

Regrouping::Attempt Regrouping::next(const RegroupWish& wish, Deadline deadline) {
  std::unique_lock lock(mutex_);
  member_.ready(wish);
  lock.unlock();
  hooks_.tell_hub();
  lock.lock();
  wait_for(
      lock, [this] { return member_.has_begun(); }, deadline);
  const RegroupState& state = member_.state();
  return {.number = state.attempt, .members = state.members, .grow = state.grow};
}

void Regrouping::tell_place(std::uint64_t attempt, std::string place) {
  {
    const std::scoped_lock lock(mutex_);
    if (!member_.is_in(attempt)) return;
    member_.tell_place(std::move(place));
  }
  hooks_.tell_hub();
}

std::optional<std::string> Regrouping::place(std::uint64_t attempt, Deadline deadline) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, deadline, [&] { return place_of_ == attempt || !member_.is_in(attempt); });
  if (place_of_ != attempt || !member_.is_in(attempt)) return std::nullopt;
  return place_;
}

bool Regrouping::is_open(std::uint64_t attempt) const {
  const std::scoped_lock lock(mutex_);
  return member_.is_in(attempt);
}

bool Regrouping::conclude(std::uint64_t attempt, std::optional<Failure> failure, Deadline deadline) {
  std::unique_lock lock(mutex_);
  throw_if_refused();
  if (!member_.is_in(attempt)) return false;
  failure ? member_.failed(std::move(*failure)) : member_.built();
  lock.unlock();
  hooks_.tell_hub();
  lock.lock();
  wait_for(
      lock, [&] { return member_.is_committed() || !member_.is_in(attempt); }, later(deadline, kVerdictTime));
  return member_.is_committed();
}

RegroupState Regrouping::state() const {
  const std::scoped_lock lock(mutex_);
  return member_.state();
}

bool Regrouping::under_way() const {
  const std::scoped_lock lock(mutex_);
  return member_.state().stage != RegroupState::Stage::away;
}

bool Regrouping::take(const RegroupVerdict& verdict) {
  const std::scoped_lock lock(mutex_);
  const bool tell = member_.take(verdict);
  changed_.notify_all();
  return tell;
}

void Regrouping::take_place(std::uint64_t attempt, const std::string& place) {
  const std::scoped_lock lock(mutex_);
  place_of_ = attempt;
  place_ = place;
  changed_.notify_all();
}

}  // namespace nzcl::bootstrap
