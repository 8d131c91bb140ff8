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

namespace {

bootstrap::MeetingSettings settings_of(const Introduction& child, int position) {
  const engine::Membership& membership = child.membership;
  return {.position = position,
          .size = membership.members.count(),
          .session = child.options.session,
          .who = membership.names[static_cast<std::size_t>(position)],
          .name = [names = membership.names](int i) { return names[static_cast<std::size_t>(i)]; },
          .point_name = "the control plane of their parent"};
}

}  // namespace

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

Split Splitter::join(ControlPlane& control, std::uint64_t number, const SplitGroup& group) const {
  return join(control, group, fmt::format("split {}, color {}", number, group.color),
              fmt::format("{}.{}", number, group.color));
}

Split Splitter::part(ControlPlane& control, const SplitGroup& group, const std::string& name) const {
  Split split = join(control, group, name, name);
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

Split Splitter::join(ControlPlane& control, const SplitGroup& group, const std::string& name,
                     const std::string& session) const {
  Split split;
  Introduction& child = split.introduction;
  child.membership = membership_among(parent_.membership, group.members, group.workers);
  // The new communicator takes the parent's share of the machine, since all that are split off together share
  // the cores as their parents' ranks do.
  child.placement = parent_.placement;
  child.options = parent_.options;
  child.wing = parent_.wing;
  const engine::Members& members = child.membership.members;
  child.options.rank = members.is_worker(members.self) ? members.self : -1;
  child.options.world_size = members.workers;
  child.options.session += "." + session;
  std::vector<int> positions;
  for (const int member : group.members)
    positions.push_back(parent_.membership.position_of[static_cast<std::size_t>(member)]);
  const auto rounds = std::make_shared<bootstrap::Rounds>(control, name, std::move(positions), members.self);
  split.meeting = bootstrap::make_exchange_meeting(
      settings_of(child, rounds->rank()),
      [rounds](std::string_view mine, Deadline until) { return rounds->allgather(mine, until); });
  return split;
}

std::optional<Split> Splitter::split(ControlPlane& control, const Turn& turn, SplitChoice choice,
                                     Deadline deadline) const {
  const auto groups = meet(control, turn.number(), choice.encode(), deadline);
  if (!groups) throw Error(ErrorCode::invalid_usage, "split: the communicator is closed");
  if (choice.color < 0) return std::nullopt;
  const auto own = std::find_if(groups->begin(), groups->end(),
                                [&](const SplitGroup& group) { return group.color == choice.color; });
  return join(control, turn.number(), *own);
}

std::optional<std::vector<Split>> Splitter::next(ControlPlane& control) {
  while (true) {
    const std::uint64_t number = Turn(*this).number();
    try {
      const auto groups = meet(control, number, "", Deadline::max());
      if (!groups) return std::nullopt;
      std::vector<Split> splits;
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
