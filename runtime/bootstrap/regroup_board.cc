#include "runtime/bootstrap/regroup_board.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace nzcl::bootstrap {
namespace {

std::vector<int> as_ints(const std::vector<std::size_t>& positions) {
  return {positions.begin(), positions.end()};
}

/// Whether a member with this state is in the attempt, and does not know how that has ended.
bool takes_part(const RegroupState& state, std::uint64_t attempt) {
  using Stage = RegroupState::Stage;
  return state.attempt == attempt &&
         (state.stage == Stage::building || state.stage == Stage::built || state.stage == Stage::failed);
}

bool contains(const std::vector<int>& positions, std::size_t position) {
  return std::binary_search(positions.begin(), positions.end(), static_cast<int>(position));
}

}  // namespace

RegroupBoard::RegroupBoard(std::vector<std::string> names, std::vector<bool> serves)
    : names_(std::move(names)), serves_(std::move(serves)), members_(names_.size()) {}

/// A state that a member sent before it was told of an attempt comes too late to say anything about that, and
/// one that it sent before it was told of a commit does not revoke it.
void RegroupBoard::said(std::size_t member, RegroupState state) {
  Member& m = members_[member];
  m.known = true;
  if (state.attempt < m.told) return;
  const bool knows = m.committed > 0 && m.committed == state.attempt;
  m.state = std::move(state);
  if (knows) m.state.stage = Stage::committed;
}

void RegroupBoard::gone(std::size_t member, bool for_certain) {
  members_[member].lives = false;
  members_[member].dead = for_certain;
}

void RegroupBoard::took_over() {
  patient_ = true;
  for (Member& m : members_) m.known = false;
}

/// The attempt that a living member knows to be committed.
std::optional<std::uint64_t> RegroupBoard::committed() const {
  for (const Member& m : members_) {
    if (m.lives && m.state.stage == Stage::committed) return m.state.attempt;
  }
  return std::nullopt;
}

/// The last attempt that living members take part in, if it has not been closed.
std::optional<std::uint64_t> RegroupBoard::open() const {
  std::uint64_t last = closed_;
  for (const Member& m : members_) {
    if (m.lives && takes_part(m.state, m.state.attempt)) last = std::max(last, m.state.attempt);
  }
  if (last == closed_) return std::nullopt;
  return last;
}

const std::vector<int>& RegroupBoard::members_of(std::uint64_t attempt) const {
  const auto one = std::find_if(members_.begin(), members_.end(), [attempt](const Member& m) {
    return m.lives && m.state.attempt == attempt && !m.state.members.empty();
  });
  static const std::vector<int> kNone;
  return one != members_.end() ? one->state.members : kNone;
}

std::optional<std::uint64_t> RegroupBoard::unexplained() const {
  const auto attempt = open();
  if (!attempt || committed() || inexplicable_ == *attempt) return std::nullopt;
  const auto failed = all_that([&](const Member& m) {
    return m.lives && m.state.stage == Stage::failed && m.state.attempt == *attempt;
  });
  return failed.empty() ? std::nullopt : attempt;
}

std::vector<RegroupBoard::Order> RegroupBoard::decide() {
  std::vector<Order> orders;
  awaits_servers_ = false;
  if (const auto done = committed()) {
    follow_commit(*done, orders);
  } else if (!knows_all()) {
    return orders;
  } else if (const auto attempt = open()) {
    go_on(*attempt, orders);
  } else {
    begin_next(orders);
  }
  return orders;
}

/// One of those that have not told their state yet may know of a commit.
bool RegroupBoard::knows_all() const {
  return !patient_ ||
         std::all_of(members_.begin(), members_.end(), [](const Member& m) { return m.known || !m.lives; });
}

int RegroupBoard::grow_of(std::uint64_t attempt) const {
  const auto in = all_that([&](const Member& m) { return m.lives && m.state.attempt == attempt; });
  return in.empty() ? 0 : members_[in.front()].state.grow;
}

void RegroupBoard::follow_commit(std::uint64_t attempt, std::vector<Order>& orders) {
  const auto in = all_that([attempt](const Member& m) { return m.lives && takes_part(m.state, attempt); });
  for (const std::size_t i : in) {
    members_[i].state.stage = Stage::committed;
    members_[i].committed = attempt;
  }
  tell(in, {.kind = RegroupVerdict::Kind::commit, .attempt = attempt, .members = {}, .failure = {}}, orders);
  const auto others = all_that([](const Member& m) { return m.lives && m.state.stage == Stage::ready; });
  leave_out(others, orders);
}

void RegroupBoard::go_on(std::uint64_t attempt, std::vector<Order>& orders) {
  const std::vector<int> members = members_of(attempt);
  Positions lost;  // who died, or whose calls are over
  bool late = false, all_built = true;
  std::optional<std::size_t> failed;
  Positions unheard;  // who live, and have not said yet whether they could join
  for (const int position : members) {
    const auto i = static_cast<std::size_t>(position);
    const Member& m = members_[i];
    const bool here = m.state.attempt == attempt;
    const bool elsewhere = m.state.stage == Stage::ready || m.state.stage == Stage::away;
    if (!m.lives || elsewhere) lost.push_back(i);
    all_built &= here && m.state.stage == Stage::built;
    late |= here && m.lives && m.state.late;
    if (here && m.state.stage == Stage::failed && !failed) failed = i;
    if (m.lives && m.state.stage != Stage::built && m.state.stage != Stage::failed) unheard.push_back(i);
  }
  const auto in = all_that([attempt](const Member& m) { return m.lives && takes_part(m.state, attempt); });
  if (lost.empty() && all_built) {
    follow_commit(attempt, orders);
  } else if (lost.empty() && failed && inexplicable_ == attempt) {
    closed_ = attempt;
    refuse(in, failure_of(*failed), orders);
  } else if ((!lost.empty() || late) && grow_of(attempt) > 0) {
    closed_ = attempt;
    // Those who are ready were to be told of the attempt by a hub that died before.
    const auto all = all_that([attempt](const Member& m) {
      return m.lives && (takes_part(m.state, attempt) || m.state.stage == Stage::ready);
    });
    refuse(all,
           !lost.empty()
               ? Failure{ErrorCode::peer_failed, "grow: not there any more: " + names_of(lost)}
               : Failure{ErrorCode::timeout, "grow: nothing was heard in time of " + names_of(unheard)},
           orders);
  } else if (!lost.empty() || late) {
    closed_ = attempt;
    if (lost.empty()) leave_out(unheard, orders);
    again(in, attempt, orders);
  } else {
    tell_place(attempt, orders);
  }
}

/// Why a member could not join. What another one has told it begins with a name already, which has a number
/// of the communicator that they tried to make: "rank 3 (pid 17 on host)".
Failure RegroupBoard::failure_of(std::size_t member) const {
  Failure failure = members_[member].state.failure;
  const bool named = std::any_of(names_.begin(), names_.end(), [&](const std::string& name) {
    return failure.text.starts_with(name.substr(0, name.find(' ') + 1));
  });
  if (!named) failure.text = names_[member] + ": " + failure.text;
  return failure;
}

void RegroupBoard::tell_place(std::uint64_t attempt, std::vector<Order>& orders) {
  const auto first = std::find_if(members_.begin(), members_.end(), [attempt](const Member& m) {
    return m.lives && takes_part(m.state, attempt) && !m.state.place.empty();
  });
  if (first == members_.end()) return;
  const auto to = all_that([attempt](const Member& m) {
    return m.lives && takes_part(m.state, attempt) && m.told_place < attempt;
  });
  for (const std::size_t i : to) members_[i].told_place = attempt;
  if (!to.empty()) orders.push_back({to, RegroupFrame::of_place(attempt, first->state.place)});
}

void RegroupBoard::again(const Positions& in, std::uint64_t attempt, std::vector<Order>& orders) {
  Positions to;
  for (const std::size_t i : in) {
    if (members_[i].left_out) continue;
    members_[i].state.stage = Stage::away;  // until it says that it is ready
    to.push_back(i);
  }
  tell(to, {.kind = RegroupVerdict::Kind::again, .attempt = attempt, .members = {}, .failure = {}}, orders);
}

void RegroupBoard::begin_next(std::vector<Order>& orders) {
  leave_out(all_that([](const Member& m) { return m.lives && m.left_out && m.state.stage == Stage::ready; }),
            orders);
  const auto is_ready = [](const Member& m) {
    return m.lives && !m.left_out && m.state.stage == Stage::ready;
  };
  refuse_to_grow(all_that([&](const Member& m) { return is_ready(m) && m.state.wish.grow > 0; }), orders);
  refuse_those_who_need_all(orders);
  const Positions ready = all_that(is_ready);
  if (ready.empty() || wait_for_ranks(ready, orders)) return;
  const auto one = *std::find_if(ready.begin(), ready.end(), [this](std::size_t i) { return !serves(i); });
  if (auto mismatch = differ_in_whom_they_leave_out(ready, one)) return refuse(ready, *mismatch, orders);
  const RegroupWish wish = members_[one].state.wish;
  Positions awaited, left;
  bool late = false;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    const Member& m = members_[i];
    if (!m.lives || m.left_out) continue;
    late |= m.state.late && is_ready(m) && !serves(i);
    if (contains(wish.leave_out, i)) {
      left.push_back(i);
    } else if (!is_ready(m)) {
      awaited.push_back(i);
    }
  }
  awaits_servers_ = !awaited.empty() &&
                    std::all_of(awaited.begin(), awaited.end(), [this](std::size_t i) { return serves(i); });
  if (!awaited.empty() && !late) return;
  if (auto mismatch = differ_in_growth(ready, one)) return refuse(ready, *mismatch, orders);
  if (wish.grow > 0 && !awaited.empty())
    return refuse(
        ready, {ErrorCode::timeout, fmt::format("grow: {} did not call in time", names_of(awaited))}, orders);
  if (wish.whole && !awaits_servers_ && !awaited.empty())
    return refuse(workers_of(ready),
                  {ErrorCode::timeout, fmt::format("not heard in time: {}", names_of(awaited))}, orders);
  if (auto why_not = what_forbids(ready, awaited)) return refuse(ready, *why_not, orders);
  left.insert(left.end(), awaited.begin(), awaited.end());
  leave_out(left, orders);
  begin(ready, wish.grow, orders);
}

void RegroupBoard::begin(const Positions& ready, int grow, std::vector<Order>& orders) {
  const std::uint64_t attempt = next_attempt();
  for (const std::size_t i : ready) {
    Member& m = members_[i];
    m.told = m.state.attempt = attempt;
    m.state.stage = Stage::building;
    m.state.late = false;
    m.state.members = as_ints(ready);
    m.state.grow = grow;
  }
  tell(ready,
       {.kind = RegroupVerdict::Kind::begin,
        .attempt = attempt,
        .members = as_ints(ready),
        .grow = grow,
        .failure = {}},
       orders);
}

std::optional<Failure> RegroupBoard::differ_in_whom_they_leave_out(const Positions& ready,
                                                                   std::size_t one) const {
  const RegroupWish& mine = members_[one].state.wish;
  for (const std::size_t i : ready) {
    const RegroupWish& theirs = members_[i].state.wish;
    if (!serves(i) && theirs.grow == mine.grow && theirs.leave_out != mine.leave_out)
      return Failure{ErrorCode::mismatch,
                     fmt::format("shrink: {} and {} leave out different ranks", names_[one], names_[i])};
  }
  return std::nullopt;
}

std::optional<Failure> RegroupBoard::differ_in_growth(const Positions& ready, std::size_t one) const {
  const int mine = members_[one].state.wish.grow;
  for (const std::size_t i : ready) {
    const int theirs = members_[i].state.wish.grow;
    if (serves(i) || theirs == mine) continue;
    if (theirs > 0 && mine > 0)
      return Failure{ErrorCode::mismatch, fmt::format("grow: {} asks for {} ranks, and {} for {}",
                                                      names_[one], mine, names_[i], theirs)};
    return Failure{ErrorCode::mismatch, fmt::format("{} grows the communicator, and {} shrinks it",
                                                    names_[mine > 0 ? one : i], names_[mine > 0 ? i : one])};
  }
  return std::nullopt;
}

/// A communicator that has failed, or that lacks a member, cannot grow. Others may shrink it meanwhile.
void RegroupBoard::refuse_to_grow(const Positions& growing, std::vector<Order>& orders) {
  if (growing.empty()) return;
  const auto missing = all_that([](const Member& m) { return !m.lives || m.left_out; });
  if (!missing.empty())
    return refuse(growing,
                  {ErrorCode::peer_failed,
                   fmt::format("grow: not there any more: {}; shrink() goes on without, and what that "
                               "returns can grow",
                               names_of(missing))},
                  orders);
  if (failure_) refuse(growing, *failure_, orders);
}

/// They only do without members that serve. A caller who shrinks may do without others as well, so those who
/// need all do not take part in that.
void RegroupBoard::refuse_those_who_need_all(std::vector<Order>& orders) {
  const auto needs_all = [](const Member& m) {
    return m.lives && m.state.stage == Stage::ready && m.state.wish.whole;
  };
  const Positions ready = all_that(needs_all);
  if (ready.empty()) return;
  Positions missing;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    const Member& m = members_[i];
    const bool shrinks = m.state.stage == Stage::ready && !m.state.wish.whole;
    if (!serves(i) && (!m.lives || m.left_out || shrinks)) missing.push_back(i);
  }
  if (!missing.empty())
    refuse(ready, {ErrorCode::peer_failed, "it was not an aggregator alone: " + names_of(missing)}, orders);
}

RegroupBoard::Positions RegroupBoard::workers_of(const Positions& positions) const {
  Positions workers;
  std::copy_if(positions.begin(), positions.end(), std::back_inserter(workers),
               [this](std::size_t i) { return !serves(i); });
  return workers;
}

/// Members that serve are ready before anybody shrinks. Returns true if no other one is.
bool RegroupBoard::wait_for_ranks(const Positions& ready, std::vector<Order>& orders) {
  bool only_servers = true, late = false, rank_lives = false;
  for (const std::size_t i : ready) {
    only_servers &= serves(i);
    late |= members_[i].state.late;
  }
  if (!only_servers) return false;
  for (std::size_t i = 0; i < members_.size(); ++i)
    rank_lives |= members_[i].lives && !members_[i].left_out && !serves(i);
  if (late || !rank_lives)
    refuse(ready, {ErrorCode::peer_failed, "no rank is left that shrinks the communicator"}, orders);
  return true;
}

std::optional<Failure> RegroupBoard::what_forbids(const Positions& ready, const Positions& left) const {
  const bool may_be_few = std::all_of(ready.begin(), ready.end(), [this](std::size_t i) {
    return serves(i) || members_[i].state.wish.minority;
  });
  if (may_be_few) return std::nullopt;
  Positions unsure = left;  // these may live on, and take the ranks here for dead
  for (std::size_t i = 0; i < members_.size(); ++i) {
    if (!members_[i].lives && !members_[i].dead && !members_[i].left_out) unsure.push_back(i);
  }
  const bool first_is_here =
      unsure.empty() || ready.front() < *std::min_element(unsure.begin(), unsure.end());
  if (ready.size() > unsure.size() || (ready.size() == unsure.size() && first_is_here)) return std::nullopt;
  return Failure{ErrorCode::peer_failed,
                 fmt::format("shrink: {} of the members can be reached, and {} cannot but may go on without "
                             "these: {}. Only the larger part goes on, unless the call allows a minority",
                             ready.size(), unsure.size(), names_of(unsure))};
}

std::string RegroupBoard::names_of(const Positions& positions) const {
  constexpr std::size_t kMost = 8;
  std::string text;
  for (std::size_t i = 0; i < std::min(positions.size(), kMost); ++i)
    text += (i > 0 ? ", " : "") + names_[positions[i]];
  return positions.size() > kMost ? text + fmt::format(" and {} more", positions.size() - kMost) : text;
}

void RegroupBoard::tell(const Positions& to, RegroupVerdict verdict, std::vector<Order>& orders) {
  if (!to.empty()) orders.push_back({to, RegroupFrame::of(std::move(verdict))});
}

void RegroupBoard::refuse(const Positions& to, const Failure& failure, std::vector<Order>& orders) {
  fail(to, RegroupVerdict::Kind::refuse, failure, orders);
}

void RegroupBoard::fail(const Positions& to, RegroupVerdict::Kind kind, const Failure& failure,
                        std::vector<Order>& orders) {
  for (const std::size_t i : to) members_[i].state.stage = Stage::away;
  tell(to, {.kind = kind, .attempt = closed_, .members = {}, .failure = failure}, orders);
}

/// These have not called in time, or the others do not want them.
void RegroupBoard::leave_out(const Positions& positions, std::vector<Order>& orders) {
  for (const std::size_t i : positions) members_[i].left_out = true;
  fail(positions, RegroupVerdict::Kind::leave_out,
       {ErrorCode::aborted,
        "shrink: this member is not in the smaller communicator, because the others left it out or it did "
        "not call in time"},
       orders);
}

std::uint64_t RegroupBoard::next_attempt() const {
  std::uint64_t last = closed_;
  for (const Member& m : members_) last = std::max(last, m.state.attempt);
  return last + 1;
}

}  // namespace nzcl::bootstrap
