// The library's log: to standard error, through spdlog. Control path only: nothing on the data path logs.
#pragma once

#include <spdlog/logger.h>

#include <string_view>

namespace nzcl {

/// Whoever first decides that something is an error logs it; callers pass it on. Thread-safe.
spdlog::logger& log();

/// trace | debug | info | warn | error | off, for the whole process. A communicator sets it from its options.
void set_log_level(std::string_view level);

}  // namespace nzcl
