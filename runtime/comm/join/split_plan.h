// Who is in which communicator after a split. Every member computes it from what all have said, so they
// cannot disagree.
#pragma once

#include <string>
#include <vector>

#include "runtime/plan/membership.h"

namespace nzcl::comm {

/// What a worker says about a split. It is sent as JSON. Dedicated aggregators say nothing.
struct SplitChoice {
  int color = 0;  // negative: it will be in none of the new communicators
  int key = 0;

  std::string encode() const;
  /// Throws Error{mismatch} for a text that is no choice.
  static SplitChoice decode(const std::string& text);
};

/// The members of one new communicator in their new order, by their numbers in the parent.
struct SplitGroup {
  int color = 0;
  std::vector<int> members;  // workers by key and then by rank; then all dedicated aggregators
  int workers = 0;
};

/// `said` has the texts of all members of the parent, by position. Returns the groups by ascending colour.
/// Throws Error{mismatch} for a text that is no choice.
std::vector<SplitGroup> plan_split(const engine::Membership& parent, const std::vector<std::string>& said);

}  // namespace nzcl::comm
