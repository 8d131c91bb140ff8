// The library's log, which spdlog writes to standard error or hands to the program's callback (nzcl/log.h).
// Only the control path uses it; the data path never logs.
#pragma once

#include <spdlog/logger.h>

#include "nzcl/log.h"

namespace nzcl {

/// The logger. It is for what reaches no caller by an exception; an error that is thrown is not logged as
/// well. A text about a communicator begins with its member's name, because nothing else tells ranks apart
/// that share a process or a file. Thread-safe.
spdlog::logger& log();

/// Sets the level for the whole process. A communicator sets it from its options.
void set_log_level(LogLevel level);

}  // namespace nzcl
