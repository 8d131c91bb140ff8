// How long to wait before something is asked for again that is not known yet.
#pragma once

#include <chrono>
#include <string>

#include "runtime/base/log.h"
#include "runtime/bootstrap/meeting.h"

namespace nzcl::bootstrap {

inline constexpr std::chrono::milliseconds kRetryPause{50};
/// The pause before something is asked for again that may take long to become known, or before somebody is
/// tried again who has been denied.
inline constexpr std::chrono::milliseconds kLongPause{500};

/// Logs each reason that may last for long, once.
class NotYetLog {
 public:
  /// To be called each time. Returns how long to wait before the next try.
  std::chrono::milliseconds note(const std::string& who, const NotYet& reason) {
    if (!reason.for_long) return kRetryPause;
    if (reason.why != warned_)
      log().warn("{}: {}; trying again until the bootstrap timeout", who, reason.why);
    warned_ = reason.why;
    return kLongPause;
  }

 private:
  std::string warned_;  // what was logged last
};

}  // namespace nzcl::bootstrap
