#include "runtime/base/block_signals.h"

#include <pthread.h>

#include <initializer_list>

namespace nzcl {

BlockSignals::BlockSignals() {
  sigset_t blocked;
  ::sigfillset(&blocked);
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS}) ::sigdelset(&blocked, fault);
  ::pthread_sigmask(SIG_BLOCK, &blocked, &before_);
}

BlockSignals::~BlockSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

}  // namespace nzcl
