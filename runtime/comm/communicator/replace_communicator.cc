// How a communicator is replaced by one of fewer or of more members.
#include <fmt/format.h>

#include <algorithm>

#include "nzcl/error.h"
#include "runtime/bootstrap/regrouping.h"
#include "runtime/comm/communicator/communicator_core.h"
#include "runtime/comm/join/regroup.h"

namespace nzcl::comm {

using engine::Operation;

/// Ranks in the order of this communicator, and the same registrations. What a death interrupts is begun
/// again with those who are left then.
std::shared_ptr<CommunicatorCore> CommunicatorCore::shrink(std::span<const int> leave_out, bool minority,
                                                           verbs::Deadline deadline) {
  require_own_process("shrink");
  const auto wish = wish_without(leave_out, minority, introduction_.membership);
  const RegroupTurn turn(control_->regrouping());
  end_operations_before("shrink", deadline);
  return regroup(wish, "", deadline);
}

/// Old ranks keep their numbers. They join anew, because nobody knows the new ranks yet, but what is
/// registered stays so. As long as not all have joined, this communicator is what it was.
std::shared_ptr<CommunicatorCore> CommunicatorCore::grow(int size, const std::string& place,
                                                         verbs::Deadline deadline) {
  require_own_process("grow");
  throw_if_failed();
  if (!session_->options())
    throw Error(ErrorCode::unsupported,
                "grow: no process can join ranks that have met in a LocalGroup, as threads of one process");
  const auto wish = wish_to_grow(size, members());
  const RegroupTurn turn(control_->regrouping());
  end_operations_before("grow", deadline);
  return regroup(wish, place, deadline);
}

void CommunicatorCore::end_operations_before(const char* call, verbs::Deadline deadline) {
  if (wait_for_all(deadline) || control_->failed()) return;
  throw Error(ErrorCode::timeout,
              fmt::format("{}: not all operations in flight ended in time; abort() ends them at once", call));
}

/// Attempts that a death interrupts are begun again with those who are left then, unless they are to grow.
std::shared_ptr<CommunicatorCore> CommunicatorCore::regroup(const bootstrap::RegroupWish& wish,
                                                            const std::string& place,
                                                            verbs::Deadline deadline) {
  bootstrap::Regrouping& regrouping = control_->regrouping();
  while (true) {
    const auto attempt = regrouping.next(wish, deadline);
    // Each attempt to shrink may take as long as a meeting. New ranks are expected until the deadline.
    if (wish.grow == 0) deadline = std::max(deadline, meeting_deadline());
    std::shared_ptr<CommunicatorCore> core;
    std::optional<Failure> failure;
    try {
      core = try_attempt(attempt, wish, place, deadline);
    } catch (const std::exception& e) {
      failure = failure_of(e);
    }
    try {
      if (regrouping.conclude(attempt.number, failure, deadline)) {
        told_ = true;  // of the failure, if there was none before
        core->former_control_ = control_;
        return core;
      }
    } catch (const Error&) {
      if (core) core->discard();
      throw;
    }
    if (core) core->discard();
  }
}

/// Nobody has seen this communicator, and its members need not wait for each other when they close it.
void CommunicatorCore::discard() {
  told_ = true;
  abort({ErrorCode::aborted, "not all members could join this communicator"});
}

/// Waits for the operations in flight. Nobody here waits for a request that was refused, and other ranks may
/// never have made the call.
bool CommunicatorCore::wait_for_all(std::optional<verbs::Deadline> deadline) {
  std::vector<std::shared_ptr<Operation>> pending;
  {
    const std::scoped_lock lock(operations_.mutex());
    pending = operations_.all();
  }
  return std::all_of(pending.begin(), pending.end(), [&](const auto& operation) {
    const bool refused = !operation->staged && operation->refusal;  // staged ones have been called
    return refused || wait(*operation, deadline);
  });
}

std::shared_ptr<CommunicatorCore> CommunicatorCore::try_attempt(const bootstrap::Regrouping::Attempt& attempt,
                                                                const bootstrap::RegroupWish& wish,
                                                                const std::string& place,
                                                                verbs::Deadline deadline) {
  const bool must_end = !wish.whole && (attempt.grow == 0 || control_->failed());
  if (must_end && ended_.wait_until(deadline) != std::future_status::ready)
    throw Error(ErrorCode::timeout, "the operations of the communicator did not end in time");
  if (attempt.grow > 0) {
    Growth growth = growth_of_attempt(introduction_, control_->regrouping(), attempt, place);
    return join_by(std::move(growth.options), std::move(growth.meeting), std::move(growth.identity), session_,
                   deadline);
  }
  if (wish.whole && attempt.members.size() == static_cast<std::size_t>(members().count()))
    throw Error(ErrorCode::peer_failed,
                "no aggregator is lost, so the next communicator would fail as this one");
  auto core = join_part(part_of_attempt(introduction_, control_->regrouping(), attempt), deadline);
  if (!wish.whole) return core;
  try {
    core->reassignment_ = core->compare(operations_, deadline);
  } catch (...) {
    core->discard();
    throw;
  }
  return core;
}

}  // namespace nzcl::comm
