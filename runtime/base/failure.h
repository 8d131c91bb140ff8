// What has failed a communicator.
#pragma once

#include <exception>
#include <string>

#include "nzcl/error.h"

namespace nzcl {

/// The first failure of a communicator. All members hold the same one.
struct Failure {
  ErrorCode code = ErrorCode::internal;
  std::string text;
};

/// Everything that is not an Error comes from the system: no memory, no threads.
inline Failure failure_of(const std::exception& e) {
  const auto* const error = dynamic_cast<const Error*>(&e);
  return {error != nullptr ? error->code() : ErrorCode::system, e.what()};
}

}  // namespace nzcl
