// What the hub of the control plane knows of the gathers that are under way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/bootstrap/frame_bytes.h"
#include "runtime/bootstrap/frames.h"

namespace nzcl::bootstrap {

/// How many gathers may be open: each member can be in a few at a time, and those that have failed stay until
/// their last member has come to hear of it.
inline constexpr std::size_t kMostGathers = 4096;

/// Collects the parts of gathers, and decides how each of them ends: with the parts of all its members, or
/// with one failure for all. Every member of a gather gets exactly one answer, no matter when its own part
/// comes, so that members never disagree about the outcome. It is the same for all, or in a gather of rows
/// what all tell this member. A state machine without I/O, for one thread.
class GatherBoard {
 public:
  struct Answer {
    std::size_t member = 0;  // position
    FrameBytes frame;
  };
  using Answers = std::vector<Answer>;

  /// The members' names by position, for error messages.
  explicit GatherBoard(std::vector<std::string> names) : names_(std::move(names)) {}

  /// The names that error messages use from now on.
  void rename(std::vector<std::string> names) { names_ = std::move(names); }

  /// Takes a frame from a member, and returns the answers to send. Throws Error{denied} for a frame that the
  /// protocol does not allow.
  Answers take(std::size_t from, GatherFrame frame);
  /// This member takes part in no further gather. Those that wait for it fail, now and later.
  Answers left(std::size_t member);
  /// Forgets all gathers. Nobody waits for them any more.
  void clear() { gathers_.clear(); }

 private:
  struct Gather {
    GatherFrame::Kind kind = GatherFrame::Kind::part;  // or row
    std::vector<int> members;                          // positions; empty: all
    std::vector<std::string> parts;                    // by index in `members`
    std::uint64_t bytes = 0;                           // of the parts, or of the longest texts of the rows
    std::vector<bool> here;                            // the member has sent its part
    std::size_t awaited = 0;                           // how many have not
    std::optional<Failure> failure;
    std::size_t member(std::size_t index) const {
      return members.empty() ? index : static_cast<std::size_t>(members[index]);
    }
    bool has(std::size_t position) const;
    Answers answer_those_here(const FrameBytes& frame, std::optional<std::size_t> except = {}) const;
  };
  using Entry = std::map<std::string, Gather>::iterator;

  void check(std::size_t from, const GatherFrame& frame) const;
  /// How many members a gather with this list has.
  std::size_t count(const std::vector<int>& members) const {
    return members.empty() ? names_.size() : members.size();
  }
  /// The first of the frame's members that has left.
  std::optional<std::size_t> first_that_left(const GatherFrame& frame) const;
  Entry find_or_open(const GatherFrame& frame);
  Answers take_part(Entry entry, std::size_t from, std::size_t index, std::string part);
  static Answers end_well(const std::string& name, Gather gather);
  /// Tells all members that are here.
  Answers fail(Entry entry, Failure failure);
  Failure closed_by(const std::string& name, std::size_t member) const;
  std::string missing(const Gather& gather) const;
  void forget_if_over(Entry entry);

  std::vector<std::string> names_;
  std::set<std::size_t> left_;             // positions
  std::map<std::string, Gather> gathers_;  // by name
};

}  // namespace nzcl::bootstrap
