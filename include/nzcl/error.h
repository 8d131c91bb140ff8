// The one exception type of the control path.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

#include "nzcl/export.h"

namespace nzcl {

/// What kind of thing went wrong. The text of an Error names the peer, the operation and the cause.
enum class ErrorCode : int {
  invalid_argument = 1,  ///< A caller passed something unusable, on this rank or on another one.
  invalid_usage = 2,  ///< The call is not allowed now (closed communicator, overlapping buffers in flight).
  unsupported = 3,    ///< Known to nzcl, but not implemented, or not possible on this machine.
  unavailable = 4,    ///< A transport, device or service is not there.
  mismatch = 5,       ///< Ranks disagree on count, type, operation, block size or form.
  timeout = 6,        ///< A peer or an operation took too long.
  peer_failed = 7,    ///< A peer died or its connection broke.
  aborted = 8,        ///< The communicator was aborted by a caller.
  transport = 9,      ///< The transport reported a failure.
  denied = 10,        ///< A peer could not prove that it belongs to the job.
  system = 11,        ///< The operating system refused something.
  internal = 12,      ///< A bug in nzcl.
};

/// "mismatch", "timeout" and so on.
[[nodiscard]] NZCL_API std::string_view name_of(ErrorCode code);

/// Thrown by every call of the C++ API that fails. Once a communicator has failed, all its pending and later
/// operations report its first error; make a new communicator to go on.
class NZCL_API Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& text) : std::runtime_error(text), code_(code) {}
  ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace nzcl
