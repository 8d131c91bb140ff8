// How a communicator goes on without a dedicated aggregator that it has lost. REASSIGNMENT.md has the steps.
#include <fmt/format.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "nzcl/error.h"
#include "runtime/base/deadline.h"
#include "runtime/base/log.h"
#include "runtime/bootstrap/regrouping.h"
#include "runtime/bootstrap/rounds.h"
#include "runtime/comm/communicator/communicator_core.h"
#include "runtime/comm/join/regroup.h"

namespace nzcl::comm {

using verbs::Clock;

namespace {

// How long the other ranks may take to find out that the communicator has failed. One that is stopped does
// not, and the failure is told to the callers then.
constexpr std::chrono::seconds kAllFailTime{5};
// How long results may still come after a failure.
constexpr std::chrono::milliseconds kLastResultsTime{20};

/// The death of a rank is a failure as any other.
bool is_about_an_aggregator(const Failure& failure, const engine::Membership& membership) {
  const engine::Members& members = membership.members;
  for (int a = 0; a < members.dedicated; ++a) {
    const int position = membership.position_of[static_cast<std::size_t>(members.aggregator_member(a))];
    if (failure.text.starts_with(membership.names[static_cast<std::size_t>(position)])) return true;
  }
  return false;
}

}  // namespace

std::shared_ptr<CommunicatorCore> CommunicatorCore::present(std::shared_ptr<CommunicatorCore> core) {
  while (core->replaceable_ && core->control_->failed()) {
    auto next = core->replaced_by_.get();
    if (!next) break;
    core = std::move(next);
  }
  return core;
}

std::optional<CommunicatorCore::Run> CommunicatorCore::begun_again(const engine::Operation& operation) {
  if (!replaceable_) return std::nullopt;
  const std::scoped_lock lock(operations_.mutex());
  const auto found = begun_again_.find(&operation);
  if (found == begun_again_.end()) return std::nullopt;
  return found->second;
}

std::optional<Failure> CommunicatorCore::lasting_failure() const {
  auto failure = control_->failure();
  if (!failure || !replaceable_) return failure;
  if (replaced_by_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return std::nullopt;
  const auto& next = replaced_by_.get();
  return next ? next->lasting_failure() : failure;
}

/// Keeps what is needed to begin the operation once more, if the option says so.
void CommunicatorCore::keep(const Request& request, Prepared& p) const {
  if (!replaceable_ || p.gpu || p.gpu_step) return;
  auto kept = KeptRequest::of(request);
  // What an allgather writes over a rank's own chunk is that chunk.
  if (kept && p.record.collective != wire::Collective::allgather && overlap(p.input_bytes, p.output_bytes)) {
    auto* const begin = const_cast<std::byte*>(p.input_bytes.data());  // a part of the output
    kept->note_overwritten({begin, p.input_bytes.size()},
                           options().on_aggregator_loss == AggregatorLoss::preserve);
  }
  p.kept = std::move(kept);
}

/// A result that an aggregator has sent before it died may have ended an operation on one rank, and be on its
/// way to the others, which cannot begin it once more. So the lanes go on for a moment before they are
/// halted. That is in time, since no buffer is given back before all members are at rest.
void CommunicatorCore::take_what_has_come() {
  for (const auto end = Clock::now() + kLastResultsTime; Clock::now() < end;) {
    {
      const std::scoped_lock lock(operations_.mutex());
      const auto& states = operations_.in_flight().states;
      if (std::ranges::all_of(states, [](auto s) { return s == OperationsInFlight::State::ended; })) break;
    }
    std::this_thread::sleep_for(engine::kLongestNap);
  }
  lanes_.halt();
}

/// On the ending thread, when nothing moves any more, on any member that lives. Returns nullptr if this is
/// about something else than an aggregator, or if the ranks do not find together.
std::shared_ptr<CommunicatorCore> CommunicatorCore::replace_if_an_aggregator_is_lost(
    const Failure& failure) noexcept {
  if (!replaceable_ || failure.code != ErrorCode::peer_failed) return nullptr;
  try {
    const RegroupTurn turn(control_->regrouping());
    return regroup({.leave_out = {}, .minority = true, .grow = 0, .whole = true}, "",
                   Clock::now() + kAllFailTime);
  } catch (const std::exception& e) {
    const auto level = is_about_an_aggregator(failure, introduction_.membership) ? spdlog::level::warn
                                                                                 : spdlog::level::debug;
    log().log(level, "{}: {}; the ranks do not go on without: {}", name(), failure.text, e.what());
    return nullptr;
  }
}

/// Collective over the ranks, on the core that is to take the place of the one with these operations.
Reassignment CommunicatorCore::compare(OperationTable& former, verbs::Deadline deadline) {
  std::vector<int> workers;
  for (int rank = 0; rank < members().workers; ++rank)
    workers.push_back(introduction_.membership.position_of[static_cast<std::size_t>(rank)]);
  bootstrap::Rounds rounds(*control_, "operations in flight", workers, members().self);
  std::string mine;
  {
    const std::scoped_lock lock(former.mutex());
    mine = former.in_flight().encode();
  }
  std::vector<OperationsInFlight> all;
  for (const std::string& text : rounds.allgather(mine, deadline))
    all.push_back(OperationsInFlight::decode(text, members().name(static_cast<int>(all.size()))));
  return Reassignment(std::move(all));
}

void CommunicatorCore::expect(std::deque<std::optional<Failure>> calls) {
  const std::scoped_lock lock(operations_.mutex());
  calls_to_come_ = std::move(calls);
}

/// The other ranks do the same, so the operations have the same order everywhere.
void CommunicatorCore::begin_again_on(std::shared_ptr<CommunicatorCore> next, const Failure& failure) {
  const Reassignment reassignment = std::move(next->reassignment_).value();
  const auto failure_of = [&](std::uint64_t epoch) -> std::optional<Failure> {
    const auto why_not = reassignment.why_not(epoch);
    if (!why_not) return std::nullopt;
    return Failure{failure.code,
                   fmt::format("{}; the others go on, but operation {} does not begin once more: {}",
                               failure.text, epoch, *why_not)};
  };
  std::uint64_t oldest = 0, end = 0;  // of this rank
  std::deque<std::optional<Failure>> calls;
  {
    const std::scoped_lock lock(operations_.mutex());
    const OperationsInFlight mine = operations_.in_flight();
    oldest = mine.first, end = mine.end();
    for (std::uint64_t epoch = oldest; epoch < end; ++epoch) {
      if (!operations_.operation(epoch)->finished() && !reassignment.why_not(epoch)) calls.emplace_back();
    }
    std::uint64_t epoch = end;
    for (auto& call : calls_to_come_) calls.push_back(call ? std::move(call) : failure_of(epoch++));
    while (epoch < reassignment.end()) calls.push_back(failure_of(epoch++));
  }
  next->expect(std::move(calls));
  std::vector<std::pair<std::shared_ptr<engine::Operation>, std::optional<Failure>>> over;
  int begun = 0;
  for (std::uint64_t epoch = oldest; epoch < end; ++epoch) {
    const auto operation = operations_.operation(epoch);
    if (operation->finished()) continue;
    auto why_not = failure_of(epoch);
    if (!why_not) {
      const auto& kept = operations_.kept(epoch);
      kept->restore_input();
      try {
        auto run = on_present(next, [&](const std::shared_ptr<CommunicatorCore>& core) {
          return Run{core, core->start(kept->request())};
        });
        const std::scoped_lock lock(operations_.mutex());
        begun_again_.emplace(operation.get(), std::move(run));
        ++begun;
      } catch (const Error& e) {
        why_not = Failure{e.code(), e.what()};
      }
    }
    over.emplace_back(operation, std::move(why_not));
  }
  next->former_ = statistics();
  log().warn("{}: {}; the ranks go on without, and {} of {} operations in flight have begun once more",
             name(), failure.text, begun, over.size());
  replacement_.set_value(next);
  for (const auto& [operation, why_not] : over) operation->fail(why_not.value_or(failure));
}

}  // namespace nzcl::comm
