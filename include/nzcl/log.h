// Where the library's log goes.
#pragma once

#include <functional>
#include <string_view>

#include "nzcl/export.h"

namespace nzcl {

/// How much a line matters, and which lines there are: those of Options::log_level and of more importance. No
/// line is of level off.
enum class LogLevel : int { trace, debug, info, warn, error, off };

/// One line without its end. A line about a communicator begins with its member: "rank 3: ..."; lines from
/// before the ranks have met cannot.
using LogCallback = std::function<void(LogLevel, std::string_view)>;

/// From now on each line of the log goes to `callback` instead of standard error; an empty one brings
/// standard error back. For the whole process. Which lines there are is up to Options::log_level.
///
/// What an exception or a status tells a caller is not logged, but at level debug. A failure that no caller
/// has been told of when its communicator closes is logged at level error.
///
/// Threads: may be called at any time, from any thread. `callback` runs on whichever thread has something to
/// say, nzcl's own included, one call at a time. It must return soon, because the threads that move data may
/// wait for it, and it must not wait for a lock that another thread holds while that one calls nzcl. What it
/// throws is dropped. What nzcl logs on the same thread meanwhile goes to standard error. When
/// set_log_callback() returns, the callback before is not running and never runs again; a callback itself
/// must not call it: Error{invalid_usage}.
NZCL_API void set_log_callback(LogCallback callback);

/// Writes one line to the log, if Options::log_level lets it through. For code around the library that has
/// something to say to the same people, as the plugin for libtorch does. Any thread may call it.
NZCL_API void write_log(LogLevel level, std::string_view line);

}  // namespace nzcl
