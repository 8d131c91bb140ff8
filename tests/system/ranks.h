// Runs ranks as threads of the test, over any transport. Over loopback they meet in a LocalGroup, over other
// transports by the allgather below.
#pragma once

#include <barrier>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "nzcl/communicator.h"

namespace nzcl::test {

/// An allgather between threads. It takes the part of the callback by which a training engine lets nzcl meet
/// through the engine's own communication.
class ThreadMeeting {
 public:
  explicit ThreadMeeting(int size) : parts_(static_cast<std::size_t>(size)), barrier_(size) {}
  AllgatherCallback callback(int rank) {
    return [this, rank](std::string_view mine) {
      parts_[static_cast<std::size_t>(rank)] = mine;
      barrier_.arrive_and_wait();
      auto all = parts_;
      barrier_.arrive_and_wait();
      return all;
    };
  }

 private:
  std::vector<std::string> parts_;
  std::barrier<> barrier_;
};

struct Setting {
  std::string transport = "loopback";
  int ranks = 2;
  int dedicated =
      0;  // loopback only: dedicated aggregators of other transports are processes (tests/process)
  Options options;
  std::function<void(int rank, Options& options)> change = nullptr;  // what is another one's
};

/// Runs `body` on every rank, and then closes all communicators together. Returns the text of each rank's
/// error, or "" where there was none.
inline std::vector<std::string> run_ranks(const Setting& setting,
                                          const std::function<void(Communicator&)>& body) {
  LocalGroup group(setting.ranks, setting.dedicated);
  ThreadMeeting meeting(setting.ranks);
  std::vector<std::string> errors(static_cast<std::size_t>(setting.ranks + setting.dedicated));
  const auto guarded = [&](int member, const std::function<void()>& work) {
    try {
      work();
    } catch (const std::exception& e) {
      errors[static_cast<std::size_t>(member)] = e.what();
    }
  };
  std::vector<std::jthread> threads;
  for (int r = 0; r < setting.ranks; ++r) {
    threads.emplace_back([&, r] {
      guarded(r, [&] {
        Options options = setting.options;
        if (setting.change) setting.change(r, options);
        if (setting.transport == "loopback") {
          Communicator communicator(group, r, options);
          body(communicator);
        } else {
          options.transport = setting.transport;
          Communicator communicator(options, r, setting.ranks, meeting.callback(r));
          body(communicator);
        }
      });
    });
  }
  for (int a = 0; a < setting.dedicated; ++a) {
    threads.emplace_back(
        [&, a] { guarded(setting.ranks + a, [&] { serve_aggregator(group, a, setting.options); }); });
  }
  threads.clear();
  return errors;
}

}  // namespace nzcl::test
