// What the members of a communicator know of each other once they have met.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/plan/link_speed.h"
#include "runtime/plan/members.h"

namespace nzcl::engine {

/// A division of the members into groups, for example those of one host. Groups are numbered from 0. A member
/// with the number -1 is in no group, not even in one of its own.
class Groups {
 public:
  Groups() = default;
  /// The numbers should be small: there is memory for each up to the largest one.
  explicit Groups(std::vector<int> group_of);
  /// Members with equal names form a group; those with an empty name are in none.
  static Groups by_name(const std::vector<std::string>& names);
  /// The groups among some of the members, who get new numbers in this order.
  Groups among(const std::vector<int>& members) const;

  /// The number of each member's group.
  const std::vector<int>& numbers() const { return group_of_; }
  bool together(int a, int b) const { return of(a) >= 0 && of(a) == of(b); }
  /// Returns true if all members are in one group.
  bool all_together() const;
  /// Returns true if no two members are in one group.
  bool none_together() const { return most_together() <= 1; }
  /// Number of members in the largest group.
  int most_together() const;
  /// The members that are in one group with `member`, itself included, in ascending order. Takes a walk over
  /// all members.
  std::vector<int> group_of_member(int member) const;
  /// The members of each group in ascending order, by its number, and then each member that is in none.
  /// Groups whose number nobody has are empty.
  std::vector<std::vector<int>> all_members() const;
  /// Number of members in the group of `member`, itself included. A member that is in none is alone.
  int size_of(int member) const;
  /// Index of `member` among the members of its group. Takes a walk over all members.
  int index_of(int member) const;

 private:
  int of(int member) const { return group_of_[static_cast<std::size_t>(member)]; }
  std::vector<int> group_of_;
  std::vector<int> sizes_;  // by group
};

struct Membership {
  Members members;
  std::vector<int> member_of;      // by position in the meeting
  std::vector<int> position_of;    // by member
  std::vector<std::string> names;  // by position, for messages: "rank 3 (pid 17 on host x)"

  /// The address of this host by which this member has met the others, or "" if the meeting cannot tell.
  std::string met_at;

  Groups hosts;     // members of one kernel and IPC namespace, which may be able to share memory
  Groups networks;  // members between which there is no network link
  /// Members that may write each other's memory, by what they say of themselves. A member whose memory nobody
  /// may write is in no group.
  Groups process_spaces;
  Groups cores;  // members that share the same cores
  /// By member: the NUMA node that its threads and its channels are on, or -1 if they are on several. Empty:
  /// nothing is known of any. The numbers of members of different hosts have nothing to do with each other.
  std::vector<int> nodes;
  /// By member: what each says of its own link. Empty: nothing is known of any.
  std::vector<LinkSpeed> links;

  int scan_streams = 1;  // how many scans of this member's host read in turn
  int lanes = 1;         // every member has this many: the smallest number that any of them planned
  /// Cache of a core, the smallest of all members. 0 means that some member does not know its own.
  std::uint64_t cache_bytes = 0;
  bool may_have_gpus = false;  // whether all workers may have memory of a GPU
  /// How many members share a core, where most do. At least 1.
  double members_per_core = 1;
};

/// The membership of a communicator of some of the members, who meet and are numbered in this order: workers
/// first, of whom there are `workers`. This process must be one of them. Lanes, cache and members per core
/// are those of the whole.
Membership membership_among(const Membership& whole, const std::vector<int>& members, int workers);

}  // namespace nzcl::engine
