// What members tell each other when those that are left of a communicator make a smaller one. README.md shows
// how it goes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/failure.h"

namespace nzcl::bootstrap {

/// How far a member has come with shrinking. It tells this to the hub whenever it changes, and to every hub
/// that takes the place of one that has died, so that nothing is lost with a hub.
struct ShrinkState {
  enum class Stage {
    away,       // it does not take part: it has not called, or its call has failed
    ready,      // it waits for an attempt
    building,   // it joins the communicator of the attempt
    built,      // it has joined that, and waits for the verdict
    failed,     // it could not join that
    committed,  // it knows that all have joined it, which is final
  };
  Stage stage = Stage::away;
  std::uint64_t attempt = 0;   // the last one that this member has heard of; 0: none
  std::vector<int> members;    // of that attempt: positions, ascending
  std::vector<int> leave_out;  // positions that its caller leaves out, ascending
  bool minority = false;       // its caller goes on with a minority as well
  bool late = false;           // ready, but its deadline has come: it waits for nobody any more
  std::string place;           // where the attempt's members meet; only of the first of them
  Failure failure;             // in Stage::failed
};

/// What the hub has decided about an attempt, or about a member's call.
struct ShrinkVerdict {
  enum class Kind {
    begin,   // the attempt begins
    again,   // a member has died in it, so another one will follow
    commit,  // all have joined it
    refuse,  // the calls of those that are told fail
  };
  Kind kind = Kind::begin;
  std::uint64_t attempt = 0;
  std::vector<int> members;  // in begin: positions, ascending
  Failure failure;           // in refuse
};

/// One message about shrinking: the letter 'S', and JSON.
struct ShrinkFrame {
  enum class Kind {
    state,    // from a member
    verdict,  // from the hub
    place,    // from the hub: where the members of the attempt meet
  };
  Kind kind = Kind::state;
  ShrinkState state;
  ShrinkVerdict verdict;
  std::uint64_t attempt = 0;  // in place
  std::string place;          // in place

  static ShrinkFrame of(ShrinkState state);
  static ShrinkFrame of(ShrinkVerdict verdict);
  static ShrinkFrame of_place(std::uint64_t attempt, std::string place);
};

bool is_shrink_frame(std::string_view text);
std::string encode(const ShrinkFrame& frame);
/// Throws Error{mismatch} for what is none, and for positions that are not ascending or not below `members`.
ShrinkFrame parse_shrink_frame(std::string_view text, std::size_t members);

}  // namespace nzcl::bootstrap
