// What the hub of the control plane knows of members that make a communicator in the place of theirs, and how
// it decides who is in it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/bootstrap/regroup_frames.h"

namespace nzcl::bootstrap {

/// Regrouping goes in *attempts*. The hub begins one with all members that live and have called; these join a
/// communicator of their own and tell whether they could; and the hub commits the attempt if all could, or
/// closes it if one of them has died, so that another one follows. Members return from their calls only when
/// they know of a commit.
///
/// If the hub dies, the next one collects what every living member knows. If one of them knows of a commit,
/// it is one for all, and otherwise the attempt is closed. So members never disagree about who is left,
/// whoever dies and when. What it rests on is that a member which is taken for dead takes part no more.
///
/// Members that grow are all there. If one of them has died, their calls fail; the new ranks, of which the
/// board knows nothing, come to the meeting of the attempt.
///
/// On the hub. A state machine without I/O, for one thread.
class RegroupBoard {
 public:
  struct Order {
    std::vector<std::size_t> to;  // positions
    RegroupFrame frame;           // a verdict or a place
  };

  /// By position: the names for error messages, and whether a member serves. `serves` may be shorter; the
  /// rest do not serve.
  RegroupBoard(std::vector<std::string> names, std::vector<bool> serves);

  /// This member has said how far it is.
  void said(std::size_t member, RegroupState state);
  /// This member has died, or cannot be reached. In the latter case it may still live, but not take part.
  void gone(std::size_t member, bool for_certain);
  /// The communicator has failed, but not because another one takes its place.
  void failed(const Failure& failure) { failure_ = failure; }
  /// This hub has taken another one's place, so it knows nothing of the members until they have said it.
  /// After patience_is_over(), it goes on without those who are late to say it.
  void took_over();
  void patience_is_over() { patient_ = false; }
  /// The attempt in which a member has failed though all of its members live, as far as is known. If this is
  /// so a little later still, no death explains it.
  std::optional<std::uint64_t> unexplained() const;
  void nothing_explains(std::uint64_t attempt) { inexplicable_ = attempt; }

  /// Whether those that serve are all that keeps an attempt from beginning. They take part as soon as the
  /// communicator has failed.
  bool awaits_servers() const { return awaits_servers_; }

  /// What follows from all this, in the order in which it is to be sent. The board takes it for sent.
  std::vector<Order> decide();

 private:
  using Stage = RegroupState::Stage;
  struct Member {
    RegroupState state;
    std::uint64_t told = 0;        // the last attempt that this hub has told it to begin
    std::uint64_t committed = 0;   // the attempt of whose commit this hub has told it
    std::uint64_t told_place = 0;  // the last attempt whose place this hub has told it
    bool known = true;             // it has said its state to this hub, or the hub has been the first one
    bool lives = true;
    bool dead = false;      // for certain
    bool left_out = false;  // takes part no more
  };
  using Positions = std::vector<std::size_t>;

  template <typename Is>
  Positions all_that(Is is) const {
    Positions positions;
    for (std::size_t i = 0; i < members_.size(); ++i) {
      if (is(members_[i])) positions.push_back(i);
    }
    return positions;
  }
  bool knows_all() const;
  std::optional<std::uint64_t> committed() const;
  std::optional<std::uint64_t> open() const;
  const std::vector<int>& members_of(std::uint64_t attempt) const;
  int grow_of(std::uint64_t attempt) const;
  void follow_commit(std::uint64_t attempt, std::vector<Order>& orders);
  Failure failure_of(std::size_t member) const;
  void tell_place(std::uint64_t attempt, std::vector<Order>& orders);
  void go_on(std::uint64_t attempt, std::vector<Order>& orders);
  void again(const Positions& in, std::uint64_t attempt, std::vector<Order>& orders);
  void begin_next(std::vector<Order>& orders);
  bool wait_for_ranks(const Positions& ready, std::vector<Order>& orders);
  std::optional<Failure> differ_in_whom_they_leave_out(const Positions& ready, std::size_t one) const;
  std::optional<Failure> differ_in_growth(const Positions& ready, std::size_t one) const;
  void refuse_to_grow(const Positions& growing, std::vector<Order>& orders);
  void refuse_those_who_need_all(std::vector<Order>& orders);
  void begin(const Positions& ready, int grow, std::vector<Order>& orders);
  /// Why these members, which are ready, may not go on without those in `left`; or nothing.
  std::optional<Failure> what_forbids(const Positions& ready, const Positions& left) const;
  std::string names_of(const Positions& positions) const;
  Positions workers_of(const Positions& positions) const;
  bool serves(std::size_t i) const { return i < serves_.size() && serves_[i]; }
  static void tell(const Positions& to, RegroupVerdict verdict, std::vector<Order>& orders);
  void refuse(const Positions& to, const Failure& failure, std::vector<Order>& orders);
  void fail(const Positions& to, RegroupVerdict::Kind kind, const Failure& failure,
            std::vector<Order>& orders);
  void leave_out(const Positions& positions, std::vector<Order>& orders);
  std::uint64_t next_attempt() const;

  std::vector<std::string> names_;
  std::vector<bool> serves_;
  std::vector<Member> members_;
  std::uint64_t closed_ = 0;        // the last attempt that this hub has closed
  std::uint64_t inexplicable_ = 0;  // the last attempt that failed without a death
  bool patient_ = false;
  bool awaits_servers_ = false;
  std::optional<Failure> failure_;
};

}  // namespace nzcl::bootstrap
