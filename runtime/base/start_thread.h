// Starts nzcl's threads, and says what forbids it if the system has no more of them.
#pragma once

#include <concepts>
#include <string>
#include <system_error>
#include <utility>

#include "runtime/base/block_signals.h"

namespace nzcl {

/// Throws the Error{system} for a thread of this name that could not be started, with the limits that bound
/// the number of threads.
[[noreturn]] void reject_thread(const std::string& name, const std::error_code& error);

/// Returns start(), which starts a thread of this name. The thread takes no signals.
template <std::invocable Start>
auto start_thread(const std::string& name, Start&& start) {
  try {
    const BlockSignals blocked;
    return std::forward<Start>(start)();
  } catch (const std::system_error& e) {
    reject_thread(name, e.code());
  }
}

}  // namespace nzcl
