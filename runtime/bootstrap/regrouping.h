// The call of shrink() of this process, and the control thread, which tell each other what happens.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/failure.h"
#include "runtime/bootstrap/meeting.h"
#include "runtime/bootstrap/regroup_member.h"

namespace nzcl::bootstrap {

/// Thread-safe. The first group of calls belongs to the thread that shrinks: enter(), then next() and
/// conclude() in turn, and leave().
class Regrouping {
 public:
  struct Attempt {
    std::uint64_t number = 0;
    std::vector<int> members;  // positions, ascending
    int grow = 0;              // as in RegroupWish
  };
  struct Hooks {
    std::function<void()> tell_hub;  // state() has changed
    std::function<void()> ask_hub;   // if the hub does not answer, another member has to take its place
  };
  explicit Regrouping(Hooks hooks) : hooks_(std::move(hooks)) {}

  /// Throws Error{invalid_usage} if another thread is between enter() and leave(), or if an attempt has been
  /// committed, and Error{aborted} if this member has been left out.
  void enter();
  /// The call is over. If nothing has been committed, it has failed.
  void leave();
  /// Waits for the next attempt of which this member is a part. Those who have not called by the deadline are
  /// left out. Throws the Error with which the hub refuses the call; Error{timeout} if there is no hub any
  /// more that decides.
  Attempt next(const RegroupWish& wish, Deadline deadline);
  /// Where the attempt's first member, which calls this, waits for the others.
  void tell_place(std::uint64_t attempt, std::string place);
  /// Waits until that is known. Returns nothing if the attempt is over before, or at the deadline.
  std::optional<std::string> place(std::uint64_t attempt, Deadline deadline);
  /// False once the attempt cannot end well any more.
  bool is_open(std::uint64_t attempt) const;
  /// Tells whether this member could join the attempt's communicator, and waits for the verdict. Returns true
  /// if all members of the attempt have joined it, which is final, and false if one of them has died, so that
  /// next() is to be called again. Throws as next() does. Members of whom nothing is heard by the deadline
  /// are left out.
  bool conclude(std::uint64_t attempt, std::optional<Failure> failure, Deadline deadline);

  // --- On the control thread
  RegroupState state() const;
  /// Whether this member has more to say than that it is away.
  bool under_way() const;
  /// Returns true if the hub has to be told the state.
  bool take(const RegroupVerdict& verdict);
  void take_place(std::uint64_t attempt, const std::string& place);

 private:
  template <typename Done>
  void wait_for(std::unique_lock<std::mutex>& lock, Done done, Deadline deadline);
  void throw_if_refused() const;

  const Hooks hooks_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  RegroupMember member_;
  bool entered_ = false;
  std::uint64_t place_of_ = 0;  // the attempt whose place is known
  std::string place_;
};

}  // namespace nzcl::bootstrap
