#include "runtime/base/log.h"

#include <spdlog/sinks/stdout_sinks.h>

#include <memory>
#include <string>

namespace nzcl {

spdlog::logger& log() {
  // Not in spdlog's registry: the caller's program may have loggers, patterns and levels of its own there.
  // Never destroyed: threads may still log while the process exits.
  static spdlog::logger& logger = *[] {
    auto* made = new spdlog::logger("nzcl", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("nzcl %H:%M:%S.%e %P %l: %v");
    made->set_level(spdlog::level::warn);
    made->flush_on(spdlog::level::trace);
    return made;
  }();
  return logger;
}

void set_log_level(std::string_view level) { log().set_level(spdlog::level::from_str(std::string(level))); }

}  // namespace nzcl
