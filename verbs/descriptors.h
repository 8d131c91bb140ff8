// How many descriptors this process may have open, and errors of the system that say so.
#pragma once

#include <cstdint>
#include <string>

namespace nzcl::verbs {

/// RLIMIT_NOFILE, and what is used of it. A process may raise its soft limit as far as the hard one.
struct Descriptors {
  std::uint64_t open = 0, soft = 0, hard = 0;
};
Descriptors read_descriptors();

/// Raises the soft limit to the hard one if `more` descriptors do not fit below the former.
void make_room_for_descriptors(std::uint64_t more) noexcept;

/// The system's text for `error`. Where descriptors have run out, the limit and how many are open follow.
std::string error_text(int error);

}  // namespace nzcl::verbs
