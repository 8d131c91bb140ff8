#include "runtime/comm/join/splitter.h"

#include <fmt/format.h>

#include <algorithm>

#include "nzcl/error.h"
#include "runtime/base/log.h"
#include "runtime/bootstrap/exchange_meeting.h"
#include "runtime/bootstrap/rounds.h"
#include "runtime/plan/tuning.h"

namespace nzcl::comm {

using bootstrap::ControlPlane;
using bootstrap::Deadline;

std::uint64_t Splitter::begin() {
  const std::scoped_lock lock(mutex_);
  if (closed_) throw Error(ErrorCode::invalid_usage, "split: the communicator is closed");
  ++under_way_;
  return next_++;
}

void Splitter::end() {
  const std::scoped_lock lock(mutex_);
  if (--under_way_ == 0) ended_.notify_all();
}

void Splitter::close() {
  std::unique_lock lock(mutex_);
  closed_ = true;
  ended_.wait(lock, [this] { return under_way_ == 0; });
}

std::optional<std::vector<SplitGroup>> Splitter::meet(ControlPlane& control, std::uint64_t number,
                                                      std::string said, Deadline deadline) const {
  const auto all = control.gather(fmt::format("split {}", number), {}, std::move(said), deadline);
  if (!all) return std::nullopt;
  return plan_split(parent_.membership, *all);
}

Part Splitter::join(ControlPlane& control, std::uint64_t number, const SplitGroup& group) const {
  return join(control, group, fmt::format("split {}, color {}", number, group.color),
              fmt::format("{}.{}", number, group.color));
}

Part Splitter::part(ControlPlane& control, const SplitGroup& group, const std::string& name) const {
  Part split = join(control, group, name, name);
  Introduction& child = split.introduction;
  child.options.algorithm = Algorithm::automatic;
  child.options.timeout_s += std::chrono::duration<double>(engine::kLevelGrace).count();
  child.options.tune.host_ranks = 0;
  child.options.check = 0;  // this communicator looks at what its callers give
  engine::Membership& membership = child.membership;
  membership.members.known_as = std::make_shared<const std::vector<int>>(group.members);
  for (std::size_t i = 0; i < group.members.size(); ++i) {
    const auto position =
        static_cast<std::size_t>(parent_.membership.position_of[static_cast<std::size_t>(group.members[i])]);
    membership.names[i] = parent_.membership.names[position];
  }
  return split;
}

Part Splitter::join(ControlPlane& control, const SplitGroup& group, const std::string& name,
                    const std::string& session) const {
  Part part;
  part.introduction = introduce_part(parent_, group.members, group.workers, session);
  std::vector<int> positions;
  for (const int member : group.members)
    positions.push_back(parent_.membership.position_of[static_cast<std::size_t>(member)]);
  const auto rounds = std::make_shared<bootstrap::Rounds>(control, name, std::move(positions),
                                                          part.introduction.membership.members.self);
  part.meeting = bootstrap::make_exchange_meeting(
      meeting_of_part(part.introduction, "the control plane of their parent"),
      [rounds](std::string_view mine, Deadline until) { return rounds->allgather(mine, until); },
      [&control] { return control.failed() ? control.failure() : std::nullopt; });
  return part;
}

std::optional<Part> Splitter::split(ControlPlane& control, const Turn& turn, SplitChoice choice,
                                    Deadline deadline) const {
  const auto groups = meet(control, turn.number(), choice.encode(), deadline);
  if (!groups) throw Error(ErrorCode::invalid_usage, "split: the communicator is closed");
  if (choice.color < 0) return std::nullopt;
  const auto own = std::find_if(groups->begin(), groups->end(),
                                [&](const SplitGroup& group) { return group.color == choice.color; });
  return join(control, turn.number(), *own);
}

std::optional<std::vector<Part>> Splitter::next(ControlPlane& control) {
  while (true) {
    const std::uint64_t number = Turn(*this).number();
    try {
      const auto groups = meet(control, number, "", Deadline::max());
      if (!groups) return std::nullopt;
      std::vector<Part> splits;
      for (const SplitGroup& group : *groups) splits.push_back(join(control, number, group));
      return splits;
    } catch (const Error& e) {
      if (control.failed()) return std::nullopt;
      // Once a worker has left, no split can end well any more.
      if (e.code() == ErrorCode::invalid_usage) return std::nullopt;
      log().debug("{}: {}", parent_.membership.members.name(parent_.membership.members.self), e.what());
    }
  }
}

}  // namespace nzcl::comm
