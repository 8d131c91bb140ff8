// What the hub of the control plane knows of the gathers that are under way.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/bootstrap/frames.h"

namespace nzcl::bootstrap {

/// How many gathers may be open: each member can be in a few at a time, and those that have failed stay until
/// their last member has come to hear of it.
inline constexpr std::size_t kMostGathers = 4096;

/// Collects the parts of gathers, and decides how each of them ends: with the parts of all its members, or
/// with one failure for all. Every member of a gather gets exactly one answer, the same for all, no matter
/// when its own part comes, so that members never disagree about the outcome. A state machine without I/O,
/// for one thread.
class GatherBoard {
 public:
  struct Answer {
    std::size_t member = 0;  // position
    std::string frame;
  };
  using Answers = std::vector<Answer>;

  /// The members' names by position, for error messages.
  explicit GatherBoard(std::vector<std::string> names) : names_(std::move(names)), left_(names_.size()) {}

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
    std::vector<int> members;        // positions
    std::vector<std::string> parts;  // by index in `members`
    std::vector<bool> here;          // the member has sent its part
    std::optional<Failure> failure;
    bool all_here() const;
    Answers answer_those_here(const std::string& frame, std::optional<std::size_t> except = {}) const;
  };
  using Entry = std::map<std::string, Gather>::iterator;

  void check(std::size_t from, const GatherFrame& frame) const;
  Entry find_or_open(const GatherFrame& frame);
  Answers take_part(Entry entry, std::size_t from, std::size_t index, std::string part);
  /// Tells all members that are here.
  Answers fail(Entry entry, Failure failure);
  Failure closed_by(const std::string& name, std::size_t member) const;
  std::string missing(const Gather& gather) const;
  void forget_if_over(Entry entry);

  std::vector<std::string> names_;
  std::vector<bool> left_;                 // by position
  std::map<std::string, Gather> gathers_;  // by name
};

}  // namespace nzcl::bootstrap
