// Who has left a communicator, and whether somebody waits in vain for one of those.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/failure.h"

namespace nzcl::bootstrap {

/// Finds members that left too early. All members start the same operations in the same order, so one that
/// has left after `begun` operations has joined those, and no operation after them can complete on anybody.
/// It has not left too early as long as nobody starts a further one: that others have not finished the last
/// ones when it leaves is normal.
///
/// An operation that cannot complete is a failure of the communicator. It is reported only when all members
/// have finished the operations before it, so that no operation fails that all members have joined.
///
/// On the hub. A state machine without I/O, for one thread.
class LeaveBoard {
 public:
  /// The members' names by position, for error messages. A member that serves starts no operations. `serves`
  /// may be shorter than `names`; the rest do not serve.
  LeaveBoard(std::vector<std::string> names, const std::vector<bool>& serves);

  /// This member, which does not serve, has left after it had begun `begun` operations. Returns true if all
  /// members have to be told of the new limit().
  bool left(std::size_t member, std::uint64_t begun);
  /// This member waits for the first `operations` operations.
  void wants(std::size_t member, std::uint64_t operations);
  /// The first `operations` operations are over on this member.
  void finished(std::size_t member, std::uint64_t operations);
  /// This member's connection has closed. What it has said before still holds.
  void gone(std::size_t member) { members_[member].here = false; }

  /// How many operations can complete: those that all members have begun that have left. The largest number
  /// of its type if nobody has left.
  std::uint64_t limit() const;
  /// Whether a member wants more operations than limit(). Then all members are to be asked to say when they
  /// have finished the first limit() operations.
  bool exceeded() const;
  /// What is wrong, once all have done so.
  std::optional<Failure> failure() const;

 private:
  struct Member {
    bool here = true;  // may still have operations to finish
    std::uint64_t wanted = 0, finished = 0;
  };
  struct Leaver {
    std::size_t member = 0;
    std::uint64_t begun = 0;
  };

  std::vector<std::string> names_;
  std::vector<Member> members_;   // by position
  std::optional<Leaver> leaver_;  // of those that have left, the one that had begun the fewest operations
};

}  // namespace nzcl::bootstrap
