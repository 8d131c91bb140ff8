// A queue of an emulated GPU: a thread that does what it is told, in order, and late.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <random>
#include <thread>

namespace nzcl::gpu {

/// Thread-safe. The destructor waits for the work that is left, except for flags that nobody raises: from
/// then on these count as raised.
class EmulatedStream {
 public:
  explicit EmulatedStream(unsigned seed);
  ~EmulatedStream();

  /// Does `work` behind all that was added before, some time later.
  void add(std::function<void()> work);
  /// Returns when everything that was added before has been done.
  void synchronize();

  // --- For the work itself, on the stream's own thread.
  /// Returns when the word has reached the value.
  void await(const std::uint32_t* flag, std::uint32_t value);
  /// Sleeps for a short, random time, so that work is late within itself.
  void dawdle();

 private:
  void run();

  std::mt19937 random_;  // the thread's
  std::mutex mutex_;     // of all below
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;
  std::uint64_t added_ = 0, done_ = 0;
  bool ending_ = false;
  std::thread thread_;  // last, because it uses all others
};

}  // namespace nzcl::gpu
