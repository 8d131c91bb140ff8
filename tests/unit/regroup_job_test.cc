// All members of a job agree who is left, with messages that take any time, and deaths at any moment.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <set>

#include "runtime/bootstrap/regroup_board.h"
#include "runtime/bootstrap/regroup_member.h"
#include "tests/unit/rank_names.h"

namespace nzcl::bootstrap {
namespace {

using Stage = RegroupState::Stage;
using Kind = RegroupVerdict::Kind;
/// Members around a hub. Between every two, messages keep their order. When a member dies, what it sent last
/// may be lost; whoever is connected with it learns of its death after what has arrived.
class Job {
 public:
  /// `wish` is the same on all but the last members, which serve. If it is to grow, an attempt may also fail
  /// because a new rank does not come.
  Job(std::size_t count, unsigned seed, int deaths, RegroupWish wish, std::size_t servers = 0)
      : random_(seed),
        deaths_(deaths),
        wish_(std::move(wish)),
        workers_(count - servers),
        members_(count),
        queues_(count * count) {
    std::vector<bool> serves(count, false);
    std::fill(serves.begin() + static_cast<std::ptrdiff_t>(workers_), serves.end(), true);
    for (Member& m : members_) m.board = RegroupBoard(test::rank_names(count), serves);
  }

  void run() {
    for (int step = 0; step < 100000; ++step) {
      std::vector<std::function<void()>> possible;
      for (std::size_t i = 0; i < members_.size(); ++i) add_steps_of(i, possible);
      if (possible.empty()) return;
      possible[random_() % possible.size()]();
    }
    FAIL() << "they do not come to an end";
  }

  /// Returns true if a communicator has been made.
  bool check() const {
    std::set<std::vector<int>> memberships;
    std::set<std::uint64_t> attempts;
    std::vector<int> alive;
    int refused = 0, committed = 0;
    for (std::size_t i = 0; i < members_.size(); ++i) {
      if (!members_[i].alive || is_left_out(i)) continue;
      alive.push_back(static_cast<int>(i));
      const RegroupState& state = members_[i].machine.state();
      const bool waits = i >= workers_ && state.stage == Stage::ready;  // it serves, and nobody shrinks
      if (may_be_refused() && (members_[i].machine.refused() || waits)) {
        refused += i < workers_ ? 1 : 0;
        continue;
      }
      ++committed;
      EXPECT_EQ(state.stage, Stage::committed) << "rank " << i;
      memberships.insert(state.members);
      attempts.insert(state.attempt);
    }
    EXPECT_TRUE(refused == 0 || committed == 0) << "all go on, or none does";
    EXPECT_LE(memberships.size(), 1u);
    EXPECT_LE(attempts.size(), 1u);
    for (const auto& membership : memberships)
      EXPECT_TRUE(std::includes(membership.begin(), membership.end(), alive.begin(), alive.end()));
    if (wish_.whole) {
      for (const auto& membership : memberships)
        for (std::size_t i = 0; i < workers_; ++i)
          EXPECT_TRUE(std::count(membership.begin(), membership.end(), static_cast<int>(i)) == 1)
              << "rank " << i;
    }
    return committed > 0;
  }

 private:
  struct Message {
    enum class What { state, verdict, place, died } what;
    RegroupState state = {};
    RegroupVerdict verdict = {};
  };
  struct Member {
    RegroupMember machine;
    RegroupBoard board{{}, {}};
    std::size_t hub = 0;
    bool alive = true, called = false;
    std::uint64_t joining = 0;   // the attempt that it has not concluded
    std::uint64_t place_of = 0;  // the attempt of which it knows where it meets
  };

  std::deque<Message>& queue(std::size_t from, std::size_t to) {
    return queues_[from * members_.size() + to];
  }
  bool is_left_out(std::size_t i) const {
    return std::count(wish_.leave_out.begin(), wish_.leave_out.end(), static_cast<int>(i)) > 0;
  }
  bool may_be_refused() const { return wish_.grow > 0 || wish_.whole; }
  bool is_hub(std::size_t i) const { return members_[i].hub == i; }

  void add_steps_of(std::size_t i, std::vector<std::function<void()>>& possible) {
    Member& m = members_[i];
    if (!m.alive) return;
    const Stage stage = m.machine.state().stage;
    const std::uint64_t attempt = m.machine.state().attempt;
    if (!m.called && !is_left_out(i)) possible.push_back([=, this] { call(i); });
    if (m.called && stage == Stage::building && m.joining == 0) {
      const bool first = m.machine.state().members.front() == static_cast<int>(i);
      if (first && m.machine.state().place.empty()) {
        possible.push_back([=, this] {
          members_[i].machine.tell_place("here");
          tell(i);
        });
      } else if (first || m.place_of == attempt) {
        possible.push_back([=, this] { conclude(i, attempt); });
      }
    }
    // The call goes on with the next attempt when it learns that this one is closed.
    const bool joins = m.joining != 0 || stage == Stage::building;
    if (joins && !m.machine.is_in(m.joining != 0 ? m.joining : attempt) && !m.machine.is_committed() &&
        !m.machine.refused())
      possible.push_back([=, this] { call(i); });
    if (wish_.grow > 0 && is_hub(i) && m.board.unexplained()) {
      possible.push_back([=, this] {
        members_[i].board.nothing_explains(*members_[i].board.unexplained());
        decide(i);
      });
    }
    if (deaths_ > 0 && (count_alive() > 1 || is_left_out(i)) && random_() % 8 == 0)
      possible.push_back([=, this] { kill(i); });
    if (repeats_ > 0 && random_() % 8 == 0) {
      possible.push_back([=, this] {
        --repeats_;
        tell(i);
      });
    }
    for (std::size_t from = 0; from < members_.size(); ++from) {
      if (queue(from, i).empty()) continue;
      // A member that is not the hub yet accepts nobody.
      if (queue(from, i).front().what == Message::What::state && !is_hub(i)) continue;
      possible.push_back([=, this] { deliver(from, i); });
    }
  }

  /// Of those that are not left out.
  std::size_t count_alive() const {
    std::size_t count = 0;
    for (std::size_t i = 0; i < members_.size(); ++i) count += members_[i].alive && !is_left_out(i) ? 1 : 0;
    return count;
  }
  void call(std::size_t i) {
    members_[i].called = true;
    members_[i].joining = 0;
    members_[i].machine.ready(i < workers_ ? wish_ : RegroupWish{});
    tell(i);
  }
  /// The member could join the attempt's communicator, or could not because somebody has died.
  void conclude(std::size_t i, std::uint64_t attempt) {
    Member& m = members_[i];
    m.joining = attempt;
    if (!m.machine.is_in(attempt)) return;
    const auto& in = m.machine.state().members;
    const bool complete = std::all_of(in.begin(), in.end(),
                                      [this](int j) { return members_[static_cast<std::size_t>(j)].alive; });
    const bool comes = wish_.grow == 0 || random_() % 16 != 0;  // the new rank
    if (complete && comes) {
      m.machine.built();
    } else {
      m.machine.failed({ErrorCode::peer_failed, "died"});
    }
    tell(i);
  }
  void tell(std::size_t i) {
    Member& m = members_[i];
    if (is_hub(i)) {
      m.board.said(i, m.machine.state());
      decide(i);
    } else if (members_[m.hub].alive) {
      queue(i, m.hub).push_back({.what = Message::What::state, .state = m.machine.state()});
    }
  }
  void decide(std::size_t hub) {
    Member& h = members_[hub];
    for (const auto& order : h.board.decide()) {
      for (const std::size_t i : order.to) {
        if (order.frame.kind == RegroupFrame::Kind::place) {
          tell_place(hub, i, order.frame.attempt);
        } else if (i == hub) {
          if (h.machine.take(order.frame.verdict)) h.board.said(hub, h.machine.state());
        } else if (members_[i].alive && members_[i].hub == hub) {
          queue(hub, i).push_back(
              {.what = Message::What::verdict, .state = {}, .verdict = order.frame.verdict});
        }
      }
    }
  }
  void tell_place(std::size_t hub, std::size_t i, std::uint64_t attempt) {
    if (i == hub) {
      members_[i].place_of = attempt;
    } else if (members_[i].alive && members_[i].hub == hub) {
      Message message{.what = Message::What::place};
      message.verdict.attempt = attempt;
      queue(hub, i).push_back(message);
    }
  }
  void kill(std::size_t i) {
    --deaths_;
    members_[i].alive = false;
    for (std::size_t j = 0; j < members_.size(); ++j) {
      queue(j, i).clear();
      auto& sent = queue(i, j);
      const std::size_t lost = random_() % (sent.size() + 1);
      sent.resize(sent.size() - lost);
      const bool connected = members_[j].hub == i || is_hub(j);
      if (members_[j].alive && connected) sent.push_back({.what = Message::What::died});
    }
  }
  void deliver(std::size_t from, std::size_t to) {
    const Message message = queue(from, to).front();
    queue(from, to).pop_front();
    Member& m = members_[to];
    switch (message.what) {
      case Message::What::state:
        m.board.said(from, message.state);
        return decide(to);
      case Message::What::verdict:
        if (m.machine.take(message.verdict)) tell(to);
        return;
      case Message::What::place:
        m.place_of = message.verdict.attempt;
        return;
      case Message::What::died:
        if (m.hub == from) return look_for_hub(to);
        m.board.gone(from, true);
        return decide(to);
    }
  }
  void look_for_hub(std::size_t i) {
    Member& m = members_[i];
    while (!members_[m.hub].alive) ++m.hub;
    if (!is_hub(i)) return tell(i);
    m.board.took_over();
    for (std::size_t j = 0; j < members_.size(); ++j) {
      if (!members_[j].alive) m.board.gone(j, true);
    }
    tell(i);
  }

  std::mt19937 random_;
  int deaths_;
  int repeats_ = 10;  // so many times a member tells what it has told before
  const RegroupWish wish_;
  const std::size_t workers_;
  std::vector<Member> members_;
  std::vector<std::deque<Message>> queues_;
};

class RegroupJob : public testing::TestWithParam<int> {};

TEST_P(RegroupJob, AgreesWhoIsLeftWhoeverDiesAndWhen) {
  const int deaths = GetParam();
  for (unsigned seed = 0; seed < 4000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RegroupWish wish;
    if (seed % 3 == 0) wish.leave_out = {0};
    Job job(2 + seed % 6, seed, deaths, wish);
    job.run();
    job.check();
    if (testing::Test::HasFailure()) return;
  }
}
TEST_P(RegroupJob, GrowsOnAllRanksOrOnNone) {
  const int deaths = GetParam();
  int grown = 0;
  for (unsigned seed = 0; seed < 4000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RegroupWish wish;
    wish.grow = 9;
    Job job(1 + seed % 6, seed, deaths, wish);
    job.run();
    grown += job.check() ? 1 : 0;
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(grown, 0);
  EXPECT_LT(grown, 4000);
}
TEST_P(RegroupJob, GoesOnWithoutServersButNotWithoutARank) {
  const int deaths = GetParam();
  int whole = 0;
  for (unsigned seed = 0; seed < 4000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RegroupWish wish;
    wish.whole = wish.minority = true;
    Job job(3 + seed % 4, seed, deaths, wish, 1 + seed % 2);
    job.run();
    whole += job.check() ? 1 : 0;
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(whole, 0);
  EXPECT_EQ(whole == 4000, deaths == 0);
}
INSTANTIATE_TEST_SUITE_P(Deaths, RegroupJob, testing::Values(0, 1, 2, 3, 6));

}  // namespace
}  // namespace nzcl::bootstrap
