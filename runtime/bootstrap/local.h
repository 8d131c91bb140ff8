// Meetings that need no network of nzcl's own: between threads of one process, of a single member, or through
// the caller's allgather.
#pragma once

#include <memory>

#include "nzcl/allgather.h"
#include "runtime/bootstrap/exchange_meeting.h"

namespace nzcl::bootstrap {

class LocalMeetingState;

/// The meeting point of `members` threads of one process. Thread-safe. The same threads may use it for one
/// meeting after another, also if one has failed.
class LocalMeeting {
 public:
  explicit LocalMeeting(int members);

 private:
  friend Allgather local_allgather(const std::shared_ptr<LocalMeeting>& meeting, int rank);
  friend std::unique_ptr<Meeting> make_local_meeting(const std::shared_ptr<LocalMeeting>& meeting, int rank);
  std::shared_ptr<LocalMeetingState> state_;
};

/// The rounds of one member in one meeting.
Allgather local_allgather(const std::shared_ptr<LocalMeeting>& meeting, int rank);
std::unique_ptr<Meeting> make_local_meeting(const std::shared_ptr<LocalMeeting>& meeting, int rank);
/// A meeting of one member.
std::unique_ptr<Meeting> make_self_meeting();
/// Throws Error{invalid_argument} if `rank` is not below `size`, or if `allgather` is empty.
std::unique_ptr<Meeting> make_callback_meeting(int rank, int size, AllgatherCallback allgather);

}  // namespace nzcl::bootstrap
