// How ranks meet: one collective, allgather of small byte strings, over whatever the launcher offers.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace nzcl::bootstrap {

using Clock = std::chrono::steady_clock;
using Deadline = Clock::time_point;

/// What a process is in the job.
enum class Role { worker, aggregator };

/// A meeting of `size` members. Control path: blocks, throws nzcl::Error naming who is missing. One thread at
/// a time.
class Bootstrap {
 public:
  virtual ~Bootstrap() = default;
  virtual int rank() const = 0;  // 0 .. size-1
  virtual int size() const = 0;
  /// Every member calls it the same number of times; returns all members' bytes in rank order.
  virtual std::vector<std::string> allgather(std::string_view mine, Deadline deadline) = 0;
};

}  // namespace nzcl::bootstrap
