#include "runtime/bootstrap/refusals.h"

#include <fmt/format.h>

#include "runtime/base/log.h"

namespace nzcl::bootstrap {
namespace {

constexpr int kLoudRefusals = 10;

}  // namespace

void Refusals::note(const std::string& from, const std::string& why) {
  last_ = fmt::format("{}: {}", from, why);
  const auto level = count_++ < kLoudRefusals ? spdlog::level::warn : spdlog::level::debug;
  log().log(level, "{}: refused a connection from {}", name_, last_);
}

}  // namespace nzcl::bootstrap
