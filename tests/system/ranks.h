// Ranks as threads of the test, over any transport: loopback through a LocalGroup, the others through an
// allgather of their own.
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

/// An allgather between threads: the out-of-band callback of an engine that has its own way to talk.
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
};

/// Runs `body` on every rank and returns each rank's error text ("" = none). Communicators close together, at
/// the end.
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
