#include "runtime/bootstrap/shrink_board.h"

#include <fmt/format.h>

#include <algorithm>

namespace nzcl::bootstrap {
namespace {

std::vector<int> as_ints(const std::vector<std::size_t>& positions) {
  return {positions.begin(), positions.end()};
}

/// Whether a member with this state is in the attempt, and does not know how that has ended.
bool takes_part(const ShrinkState& state, std::uint64_t attempt) {
  using Stage = ShrinkState::Stage;
  return state.attempt == attempt &&
         (state.stage == Stage::building || state.stage == Stage::built || state.stage == Stage::failed);
}

bool contains(const std::vector<int>& positions, std::size_t position) {
  return std::binary_search(positions.begin(), positions.end(), static_cast<int>(position));
}

}  // namespace

ShrinkBoard::ShrinkBoard(std::vector<std::string> names, std::vector<bool> serves)
    : names_(std::move(names)), serves_(std::move(serves)), members_(names_.size()) {}

/// A state that a member sent before it was told of an attempt comes too late to say anything about that.
void ShrinkBoard::said(std::size_t member, ShrinkState state) {
  Member& m = members_[member];
  m.known = true;
  if (state.attempt >= m.told) m.state = std::move(state);
}

void ShrinkBoard::gone(std::size_t member, bool for_certain) {
  members_[member].lives = false;
  members_[member].dead = for_certain;
}

void ShrinkBoard::took_over() {
  patient_ = true;
  for (Member& m : members_) m.known = false;
}

/// The attempt that a living member knows to be committed.
std::optional<std::uint64_t> ShrinkBoard::committed() const {
  for (const Member& m : members_) {
    if (m.lives && m.state.stage == Stage::committed) return m.state.attempt;
  }
  return std::nullopt;
}

/// The last attempt that living members take part in, if it has not been closed.
std::optional<std::uint64_t> ShrinkBoard::open() const {
  std::uint64_t last = closed_;
  for (const Member& m : members_) {
    if (m.lives && takes_part(m.state, m.state.attempt)) last = std::max(last, m.state.attempt);
  }
  if (last == closed_) return std::nullopt;
  return last;
}

const std::vector<int>& ShrinkBoard::members_of(std::uint64_t attempt) const {
  const auto one = std::find_if(members_.begin(), members_.end(), [attempt](const Member& m) {
    return m.lives && m.state.attempt == attempt && !m.state.members.empty();
  });
  static const std::vector<int> kNone;
  return one != members_.end() ? one->state.members : kNone;
}

std::optional<std::uint64_t> ShrinkBoard::unexplained() const {
  const auto attempt = open();
  if (!attempt || committed() || inexplicable_ == *attempt) return std::nullopt;
  const auto failed = all_that([&](const Member& m) {
    return m.lives && m.state.stage == Stage::failed && m.state.attempt == *attempt;
  });
  return failed.empty() ? std::nullopt : attempt;
}

std::vector<ShrinkBoard::Order> ShrinkBoard::decide() {
  std::vector<Order> orders;
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
bool ShrinkBoard::knows_all() const {
  return !patient_ ||
         std::all_of(members_.begin(), members_.end(), [](const Member& m) { return m.known || !m.lives; });
}

void ShrinkBoard::follow_commit(std::uint64_t attempt, std::vector<Order>& orders) {
  const auto in = all_that([attempt](const Member& m) { return m.lives && takes_part(m.state, attempt); });
  for (const std::size_t i : in) members_[i].state.stage = Stage::committed;
  tell(in, {.kind = ShrinkVerdict::Kind::commit, .attempt = attempt, .members = {}, .failure = {}}, orders);
  const auto others = all_that([](const Member& m) { return m.lives && m.state.stage == Stage::ready; });
  leave_out(others, orders);
}

void ShrinkBoard::go_on(std::uint64_t attempt, std::vector<Order>& orders) {
  const std::vector<int> members = members_of(attempt);
  bool lost = false, late = false, all_built = true;
  const Member* failed = nullptr;
  Positions unheard;  // who live, and have not said yet whether they could join
  for (const int position : members) {
    const auto i = static_cast<std::size_t>(position);
    const Member& m = members_[i];
    const bool here = m.state.attempt == attempt;
    const bool elsewhere = m.state.stage == Stage::ready || m.state.stage == Stage::away;
    lost |= !m.lives || elsewhere;
    all_built &= here && m.state.stage == Stage::built;
    late |= here && m.lives && m.state.late;
    if (here && m.state.stage == Stage::failed && failed == nullptr) failed = &m;
    if (m.lives && m.state.stage != Stage::built && m.state.stage != Stage::failed) unheard.push_back(i);
  }
  const auto in = all_that([attempt](const Member& m) { return m.lives && takes_part(m.state, attempt); });
  if (!lost && all_built) {
    follow_commit(attempt, orders);
  } else if (!lost && failed != nullptr && inexplicable_ == attempt) {
    closed_ = attempt;
    refuse(in, failed->state.failure, orders);
  } else if (lost || late) {
    closed_ = attempt;
    if (!lost) leave_out(unheard, orders);
    again(in, attempt, orders);
  } else {
    tell_place(attempt, orders);
  }
}

void ShrinkBoard::tell_place(std::uint64_t attempt, std::vector<Order>& orders) {
  const auto first = std::find_if(members_.begin(), members_.end(), [attempt](const Member& m) {
    return m.lives && takes_part(m.state, attempt) && !m.state.place.empty();
  });
  if (first == members_.end()) return;
  const auto to = all_that([attempt](const Member& m) {
    return m.lives && takes_part(m.state, attempt) && m.told_place < attempt;
  });
  for (const std::size_t i : to) members_[i].told_place = attempt;
  if (!to.empty()) orders.push_back({to, ShrinkFrame::of_place(attempt, first->state.place)});
}

void ShrinkBoard::again(const Positions& in, std::uint64_t attempt, std::vector<Order>& orders) {
  Positions to;
  for (const std::size_t i : in) {
    if (members_[i].left_out) continue;
    members_[i].state.stage = Stage::away;  // until it says that it is ready
    to.push_back(i);
  }
  tell(to, {.kind = ShrinkVerdict::Kind::again, .attempt = attempt, .members = {}, .failure = {}}, orders);
}

void ShrinkBoard::begin_next(std::vector<Order>& orders) {
  leave_out(all_that([](const Member& m) { return m.lives && m.left_out && m.state.stage == Stage::ready; }),
            orders);
  const auto is_ready = [](const Member& m) {
    return m.lives && !m.left_out && m.state.stage == Stage::ready;
  };
  const Positions ready = all_that(is_ready);
  if (ready.empty() || wait_for_ranks(ready, orders)) return;
  const auto one = *std::find_if(ready.begin(), ready.end(), [this](std::size_t i) { return !serves(i); });
  const std::vector<int> unwanted = members_[one].state.leave_out;
  for (const std::size_t i : ready) {
    if (!serves(i) && members_[i].state.leave_out != unwanted)
      return refuse(ready,
                    {ErrorCode::mismatch,
                     fmt::format("shrink: {} and {} leave out different ranks", names_[one], names_[i])},
                    orders);
  }
  Positions awaited, left;
  bool late = false;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    const Member& m = members_[i];
    if (!m.lives || m.left_out) continue;
    late |= m.state.late && is_ready(m) && !serves(i);
    if (contains(unwanted, i)) {
      left.push_back(i);
    } else if (!is_ready(m)) {
      awaited.push_back(i);
    }
  }
  if (!awaited.empty() && !late) return;
  if (auto why_not = what_forbids(ready, awaited)) return refuse(ready, *why_not, orders);
  left.insert(left.end(), awaited.begin(), awaited.end());
  leave_out(left, orders);
  const std::uint64_t attempt = next_attempt();
  for (const std::size_t i : ready) {
    Member& m = members_[i];
    m.told = m.state.attempt = attempt;
    m.state.stage = Stage::building;
    m.state.late = false;
    m.state.members = as_ints(ready);
  }
  tell(ready,
       {.kind = ShrinkVerdict::Kind::begin, .attempt = attempt, .members = as_ints(ready), .failure = {}},
       orders);
}

/// Members that serve are ready before anybody shrinks. Returns true if no other one is.
bool ShrinkBoard::wait_for_ranks(const Positions& ready, std::vector<Order>& orders) {
  bool only_servers = true, late = false, rank_lives = false;
  for (const std::size_t i : ready) {
    only_servers &= serves(i);
    late |= members_[i].state.late;
  }
  if (!only_servers) return false;
  for (std::size_t i = 0; i < members_.size(); ++i)
    rank_lives |= members_[i].lives && !members_[i].left_out && !serves(i);
  if (late || !rank_lives)
    refuse(ready, {ErrorCode::peer_failed, "shrink: no rank is left that shrinks the communicator"}, orders);
  return true;
}

std::optional<Failure> ShrinkBoard::what_forbids(const Positions& ready, const Positions& left) const {
  const bool may_be_few = std::all_of(
      ready.begin(), ready.end(), [this](std::size_t i) { return serves(i) || members_[i].state.minority; });
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

std::string ShrinkBoard::names_of(const Positions& positions) const {
  constexpr std::size_t kMost = 8;
  std::string text;
  for (std::size_t i = 0; i < std::min(positions.size(), kMost); ++i)
    text += (i > 0 ? ", " : "") + names_[positions[i]];
  return positions.size() > kMost ? text + fmt::format(" and {} more", positions.size() - kMost) : text;
}

void ShrinkBoard::tell(const Positions& to, ShrinkVerdict verdict, std::vector<Order>& orders) {
  if (!to.empty()) orders.push_back({to, ShrinkFrame::of(std::move(verdict))});
}

void ShrinkBoard::refuse(const Positions& to, const Failure& failure, std::vector<Order>& orders) {
  for (const std::size_t i : to) members_[i].state.stage = Stage::away;
  tell(to, {.kind = ShrinkVerdict::Kind::refuse, .attempt = closed_, .members = {}, .failure = failure},
       orders);
}

/// These have not called in time, or the others do not want them.
void ShrinkBoard::leave_out(const Positions& positions, std::vector<Order>& orders) {
  for (const std::size_t i : positions) members_[i].left_out = true;
  refuse(positions,
         {ErrorCode::aborted,
          "shrink: this member is not in the smaller communicator, because the others left it out or it did "
          "not call in time"},
         orders);
}

std::uint64_t ShrinkBoard::next_attempt() const {
  std::uint64_t last = closed_;
  for (const Member& m : members_) last = std::max(last, m.state.attempt);
  return last + 1;
}

}  // namespace nzcl::bootstrap
