// How the members of a communicator meet: by one collective, an allgather of small byte strings, over
// whatever the launcher offers.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace nzcl::bootstrap {

using Clock = std::chrono::steady_clock;
using Deadline = Clock::time_point;

/// What a process does in the job.
enum class Role { worker, aggregator };

/// A meeting of size() members. Its calls belong to the control path: they block, and they throw an
/// nzcl::Error that names the members that are missing. Not thread-safe.
class Bootstrap {
 public:
  virtual ~Bootstrap() = default;
  virtual int rank() const = 0;  // this member's position in the meeting, 0 .. size() - 1
  virtual int size() const = 0;
  /// Collective: every member calls it the same number of times. Returns the bytes of all members, ordered by
  /// their positions. Throws Error{timeout} at the deadline.
  virtual std::vector<std::string> allgather(std::string_view mine, Deadline deadline) = 0;
  /// The address of this host on its connections with the other members ("10.0.0.7"), or "" if there are
  /// none, or only within the host. It is known after the first allgather.
  virtual std::string local_address() const { return {}; }
};

}  // namespace nzcl::bootstrap
