// A rank that writes random bytes wherever its peers read what it writes.
#ifndef NZCL_TESTS_PROCESS_SCRIBBLER_H_
#define NZCL_TESTS_PROCESS_SCRIBBLER_H_

#include <thread>

/// Made by main() before it starts other threads, because it blocks SIGUSR1 in all of them. When this signal
/// comes, a thread begins to write into the memory that this process shares with others, for a tenth of a
/// second.
class Scribbler {
 public:
  Scribbler();
  ~Scribbler();
  Scribbler(const Scribbler&) = delete;
  Scribbler& operator=(const Scribbler&) = delete;

 private:
  std::jthread thread_;
};

#endif  // NZCL_TESTS_PROCESS_SCRIBBLER_H_
