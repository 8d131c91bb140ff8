// A rank that is a process of its own, and dies when it is told to.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <system_error>

#include "nzcl/communicator.h"

namespace nzcl::test {

/// Rank 1 of two. Made before this process has threads.
class RankToKill {
 public:
  /// The other process calls `run` with its communicator, and with a function that waits for its death.
  RankToKill(Options options, const std::string& transport,
             const std::function<void(Communicator&, const std::function<void()>&)>& run)
      : meeting_(testing::TempDir() + "nzcl_rank_to_kill_" + std::to_string(::getpid())),
        options_(std::move(options)) {
    std::filesystem::remove(meeting_);
    options_.transport = transport;
    options_.bootstrap = Bootstrap::file;
    options_.rendezvous_file = meeting_;
    options_.world_size = 2;
    if (::pipe(word_.data()) != 0) throw std::system_error(errno, std::generic_category(), "pipe");
    child_ = ::fork();
    if (child_ < 0) throw std::system_error(errno, std::generic_category(), "fork");
    if (child_ > 0) return;
    ::close(word_[1]);  // so that it ends with the other one
    ::alarm(60);
    options_.rank = 1;
    Communicator communicator(options_);
    run(communicator, [this] {
      char told = 0;
      if (::read(word_[0], &told, 1) == 1) ::raise(SIGKILL);
    });
    ::_exit(1);
  }
  ~RankToKill() {
    for (const int end : word_) ::close(end);  // which ends one that was not killed
    ::waitpid(child_, nullptr, 0);
    std::filesystem::remove(meeting_);
  }
  RankToKill(const RankToKill&) = delete;
  RankToKill& operator=(const RankToKill&) = delete;

  /// Those of rank 0.
  Options options_of_first() const {
    Options options = options_;
    options.rank = 0;
    return options;
  }
  void kill() { EXPECT_EQ(::write(word_[1], "!", 1), 1); }

 private:
  const std::string meeting_;
  Options options_;
  std::array<int, 2> word_{};  // by which the child is told to die
  pid_t child_ = -1;
};

}  // namespace nzcl::test
