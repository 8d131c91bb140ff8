// What the members of a communicator know of each other once they have met.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/plan/members.h"

namespace nzcl::engine {

/// The members cut into groups: those of one host, say. Groups are numbered from 0; a member that is in none
/// of them, not even alone, has -1.
class Groups {
 public:
  Groups() = default;
  explicit Groups(std::vector<int> group_of) : group_of_(std::move(group_of)) {}
  /// Members with equal names form a group; those with an empty name are in none.
  static Groups by_name(const std::vector<std::string>& names);

  /// By member.
  const std::vector<int>& numbers() const { return group_of_; }
  bool together(int a, int b) const { return of(a) >= 0 && of(a) == of(b); }
  /// All members are in one group.
  bool all_together() const;
  /// Some members are in no group, and others are in one.
  bool leave_some_out() const;
  /// Members of the group that `member` is in.
  int size_of(int member) const;
  /// Its index among them.
  int index_of(int member) const;

 private:
  int of(int member) const { return group_of_[static_cast<std::size_t>(member)]; }
  std::vector<int> group_of_;
};

struct Membership {
  Members members;
  std::vector<int> member_of;      // by position in the meeting
  std::vector<int> position_of;    // by member
  std::vector<std::string> names;  // by position, for people: "rank 3 (pid 17 on host x)"

  Groups hosts;     // members that can share memory
  Groups networks;  // members that no link separates
  Groups
      process_spaces;  // members that may write each other's memory; those that nobody may write are in none
  Groups cores;        // members that share the same cores

  int lanes = 1;                  // of every member: the smallest plan
  std::uint64_t cache_bytes = 0;  // of a core: the smallest member's; 0: some member does not know its own
};

}  // namespace nzcl::engine
