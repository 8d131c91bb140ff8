// What has failed a communicator.
#pragma once

#include <string>

#include "nzcl/error.h"

namespace nzcl {

/// The first failure of a communicator. All members hold the same one.
struct Failure {
  ErrorCode code = ErrorCode::internal;
  std::string text;
};

}  // namespace nzcl
