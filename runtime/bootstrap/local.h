// Meetings that need no network of nzcl's own: between threads of one process, of a single member, or through
// the caller's allgather.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "nzcl/allgather.h"
#include "runtime/bootstrap/bootstrap.h"

namespace nzcl::bootstrap {

class LocalMeetingState;

/// The meeting point of `members` threads of one process. Thread-safe. The same threads may use it for one
/// meeting after another, also if one has failed.
class LocalMeeting {
 public:
  explicit LocalMeeting(int members);

 private:
  friend std::unique_ptr<Bootstrap> make_local_bootstrap(std::shared_ptr<LocalMeeting> meeting, int rank);
  std::shared_ptr<LocalMeetingState> state_;
};

std::unique_ptr<Bootstrap> make_local_bootstrap(std::shared_ptr<LocalMeeting> meeting, int rank);
/// A meeting of one member.
std::unique_ptr<Bootstrap> make_self_bootstrap();
/// Throws Error{invalid_argument} if `rank` is not below `size`, or if `allgather` is empty.
std::unique_ptr<Bootstrap> make_callback_bootstrap(int rank, int size, AllgatherCallback allgather);

}  // namespace nzcl::bootstrap
