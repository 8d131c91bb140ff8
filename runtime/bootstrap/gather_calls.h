// The calls of this process that wait for the outcome of a gather of the control plane.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "runtime/base/failure.h"
#include "runtime/bootstrap/frames.h"
#include "runtime/bootstrap/meeting.h"

namespace nzcl::bootstrap {

/// Hands the hub's answers to the threads that wait for them. Thread-safe.
class GatherCalls {
 public:
  enum class State { waiting, answered, over };

  /// To be called before the part is sent. Throws Error{internal} if a call with this name is waiting.
  void begin(const std::string& name);
  /// Waits until the hub has answered, or until no answer can come any more. Returns State::waiting at the
  /// deadline; Deadline::max() means no deadline.
  State wait(const std::string& name, Deadline deadline);
  /// Ends the call, and returns the answer, if there is one.
  std::optional<GatherFrame> end(const std::string& name);

  /// Called on the control thread. Drops an answer for which nobody waits, and every answer after close().
  void answer(GatherFrame frame);
  /// Called on the control thread when no answer will come any more, because the communicator has failed or
  /// all members have left.
  void close();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::optional<GatherFrame>> answers_;  // of the calls that wait, by name
  bool closed_ = false;
};

}  // namespace nzcl::bootstrap
