// What members tell each other when they make a communicator that takes the place of theirs: one of those
// that are left, or one with new ranks. README.md shows how it goes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/failure.h"

namespace nzcl::bootstrap {

/// What a member's caller asks for. Those that serve ask for nothing.
struct RegroupWish {
  std::vector<int> leave_out;  // positions, ascending
  bool minority = false;       // it goes on with a minority as well
  int grow = 0;                // the number of workers, of which the last ones are new; 0: none are new
  bool whole = false;          // only if all workers go on: those that serve are all that may be missing
};

/// How far a member has come with regrouping. It tells this to the hub whenever it changes, and to every hub
/// that takes the place of one that has died, so that nothing is lost with a hub.
struct RegroupState {
  enum class Stage {
    away,       // it does not take part: it has not called, or its call has failed
    ready,      // it waits for an attempt
    building,   // it joins the communicator of the attempt
    built,      // it has joined that, and waits for the verdict
    failed,     // it could not join that
    committed,  // it knows that all have joined it, which is final
  };
  Stage stage = Stage::away;
  std::uint64_t attempt = 0;  // the last one that this member has heard of; 0: none
  std::vector<int> members;   // of that attempt: positions, ascending
  int grow = 0;               // of that attempt: as in the wish
  RegroupWish wish;
  bool late = false;  // ready, but its deadline has come: it waits for nobody any more
  std::string place;  // where the attempt's members meet; only of the one that listens
  Failure failure;    // in Stage::failed
};

/// What the hub has decided about an attempt, or about a member's call.
struct RegroupVerdict {
  enum class Kind {
    begin,      // the attempt begins
    again,      // a member has died in it, so another one will follow
    commit,     // all have joined it
    refuse,     // the calls of those that are told fail, and may be repeated
    leave_out,  // they take part no more: these calls fail, and all later ones
  };
  Kind kind = Kind::begin;
  std::uint64_t attempt = 0;
  std::vector<int> members;  // in begin: positions, ascending
  int grow = 0;              // in begin: as in the wishes
  Failure failure;           // in refuse and leave_out

  bool fails() const { return kind == Kind::refuse || kind == Kind::leave_out; }
};

/// One message about regrouping: the letter 'S', and JSON.
struct RegroupFrame {
  enum class Kind {
    state,    // from a member
    verdict,  // from the hub
    place,    // from the hub: where the members of the attempt meet
  };
  Kind kind = Kind::state;
  RegroupState state;
  RegroupVerdict verdict;
  std::uint64_t attempt = 0;  // in place
  std::string place;          // in place

  static RegroupFrame of(RegroupState state);
  static RegroupFrame of(RegroupVerdict verdict);
  static RegroupFrame of_place(std::uint64_t attempt, std::string place);
};

bool is_regroup_frame(std::string_view text);
std::string encode(const RegroupFrame& frame);
/// Throws Error{mismatch} for what is none, and for positions that are not ascending or not below `members`.
RegroupFrame parse_regroup_frame(std::string_view text, std::size_t members);

}  // namespace nzcl::bootstrap
