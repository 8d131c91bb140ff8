// Keeps the process's signals away from the threads that nzcl starts.
#pragma once

#include <signal.h>

namespace nzcl {

/// While it lives, the calling thread takes no signals, and neither will the threads that it starts
/// meanwhile, because a thread inherits the mask of the thread that starts it. Every thread of nzcl is
/// started inside of one. A signal to the process goes to any thread that does not block it, so a thread that
/// the program knows nothing of could otherwise take a signal that the program waits for with sigwait(3) or
/// signalfd(2), or run a handler of the program.
///
/// Signals that report a fault of the thread itself (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS) are
/// not blocked, because the kernel would then end the process without the program's handler.
///
/// It must be short-lived: nobody can interrupt the program with Ctrl-C meanwhile.
class BlockSignals {
 public:
  BlockSignals();
  ~BlockSignals();
  BlockSignals(const BlockSignals&) = delete;
  BlockSignals& operator=(const BlockSignals&) = delete;

 private:
  sigset_t before_;
};

}  // namespace nzcl
