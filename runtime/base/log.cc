#include "runtime/base/log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/sink.h>

#include <cstdio>
#include <memory>
#include <mutex>
#include <string>

#include "nzcl/error.h"
#include "nzcl/log.h"

namespace nzcl {
namespace {

spdlog::level::level_enum spdlog_level(LogLevel level) {
  switch (level) {
    case LogLevel::trace:
      return spdlog::level::trace;
    case LogLevel::debug:
      return spdlog::level::debug;
    case LogLevel::info:
      return spdlog::level::info;
    case LogLevel::warn:
      return spdlog::level::warn;
    case LogLevel::error:
      return spdlog::level::err;
    case LogLevel::off:
      break;
  }
  return spdlog::level::off;
}

LogLevel level_of(spdlog::level::level_enum level) {
  switch (level) {
    case spdlog::level::trace:
      return LogLevel::trace;
    case spdlog::level::debug:
      return LogLevel::debug;
    case spdlog::level::info:
      return LogLevel::info;
    case spdlog::level::warn:
      return LogLevel::warn;
    case spdlog::level::err:
    case spdlog::level::critical:
    case spdlog::level::off:
    case spdlog::level::n_levels:
      break;
  }
  return LogLevel::error;
}

/// To the program's callback if there is one, else to standard error. The lock is held while the callback
/// runs, so that the program knows when it has run for the last time. It is recursive because the callback
/// may call something of nzcl's that logs.
class Sink final : public spdlog::sinks::sink {
 public:
  void set_callback(LogCallback callback) {
    const std::scoped_lock lock(mutex_);
    if (calling_) throw Error(ErrorCode::invalid_usage, "set_log_callback: called by a log callback");
    callback_ = std::move(callback);
  }

  void log(const spdlog::details::log_msg& message) override {
    const std::scoped_lock lock(mutex_);
    if (!callback_ || calling_) return to_stderr(message);
    calling_ = true;
    try {
      callback_(level_of(message.level), {message.payload.data(), message.payload.size()});
    } catch (...) {  // nothing of nzcl's can mend it, and whoever logs is about something else
    }
    calling_ = false;
  }
  void flush() override {}  // standard error is not buffered
  void set_pattern(const std::string& pattern) override {
    set_formatter(std::make_unique<spdlog::pattern_formatter>(pattern));
  }
  void set_formatter(std::unique_ptr<spdlog::formatter> formatter) override {
    const std::scoped_lock lock(mutex_);
    formatter_ = std::move(formatter);
  }

 private:
  void to_stderr(const spdlog::details::log_msg& message) {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    std::fwrite(line.data(), 1, line.size(), stderr);
  }

  std::recursive_mutex mutex_;
  std::unique_ptr<spdlog::formatter> formatter_;
  LogCallback callback_;
  bool calling_ = false;
};

Sink& sink() {
  static Sink& made = *new Sink;  // never destroyed, like the logger
  return made;
}

}  // namespace

spdlog::logger& log() {
  // The logger stays out of spdlog's registry, where the caller's program may have loggers, patterns and
  // levels of its own. It is never destroyed, because threads may still log while the process exits.
  static spdlog::logger& logger = *[] {
    auto* made = new spdlog::logger("nzcl", spdlog::sink_ptr(&sink(), [](spdlog::sinks::sink*) {}));
    made->set_pattern("nzcl %H:%M:%S.%e %P %l: %v");
    made->set_level(spdlog::level::warn);
    made->flush_on(spdlog::level::trace);
    return made;
  }();
  return logger;
}

void set_log_level(LogLevel level) { log().set_level(spdlog_level(level)); }

void set_log_callback(LogCallback callback) { sink().set_callback(std::move(callback)); }

void write_log(LogLevel level, std::string_view line) {
  if (level != LogLevel::off) log().log(spdlog_level(level), line);  // off is no level of a line
}

}  // namespace nzcl
