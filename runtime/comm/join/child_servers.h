// The communicators that a dedicated aggregator serves besides the one that it has joined itself.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <list>
#include <mutex>
#include <string>
#include <thread>

namespace nzcl::comm {

/// One thread for each communicator, "nzcl-serve". Used by one thread.
class ChildServers {
 public:
  /// `name` is the aggregator's, for the log.
  explicit ChildServers(std::string name) : name_(std::move(name)) {}
  /// Runs `serve`, which returns when the communicator's workers have left, on a thread of its own.
  void start(std::function<void()> serve);
  /// Waits until all have returned. Throws the first exception that one of them has ended with; later ones
  /// are logged.
  void wait();

 private:
  struct Server {
    std::atomic<bool> over{false};
    std::jthread thread;  // the last member, because it uses the other one
  };
  void note(std::exception_ptr error);

  const std::string name_;
  std::mutex mutex_;  // guards first_
  std::exception_ptr first_;
  std::list<Server> servers_;  // the last member, because its threads use the others
};

}  // namespace nzcl::comm
