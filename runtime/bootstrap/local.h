// Meetings that need no network: threads of one process, a single member, or the caller's own allgather.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "nzcl/communicator.h"
#include "runtime/bootstrap/bootstrap.h"

namespace nzcl::bootstrap {

class LocalMeetingState;

/// Where the threads of one process meet. Thread-safe. Each round of communicators uses it in turn.
class LocalMeeting {
 public:
  explicit LocalMeeting(int members);

 private:
  friend std::unique_ptr<Bootstrap> make_local_bootstrap(std::shared_ptr<LocalMeeting> meeting, int rank);
  std::shared_ptr<LocalMeetingState> state_;
};

std::unique_ptr<Bootstrap> make_local_bootstrap(std::shared_ptr<LocalMeeting> meeting, int rank);
std::unique_ptr<Bootstrap> make_self_bootstrap();
std::unique_ptr<Bootstrap> make_callback_bootstrap(int rank, int size, AllgatherCallback allgather);

}  // namespace nzcl::bootstrap
