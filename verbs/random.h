// Random numbers that nobody can guess: keys, secrets, nonces.
#pragma once

#include <fmt/format.h>
#include <sys/random.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "nzcl/error.h"

namespace nzcl::verbs {

/// Returns 64 bits of the kernel's random generator. Throws Error{system} if it has none.
inline std::uint64_t random_number() {
  std::uint64_t number = 0;
  if (::getrandom(&number, sizeof number, 0) != sizeof number)
    throw Error(ErrorCode::system, fmt::format("getrandom: {}", std::strerror(errno)));
  return number;
}

}  // namespace nzcl::verbs
