// Random numbers in shared memory, by which a process proves that a descriptor is the one that it spoke of.
#pragma once

#include <cstddef>
#include <cstdint>

#include "verbs/fd.h"
#include "verbs/random.h"

namespace nzcl::verbs::segment {

/// Whether the file holds this number there. It is read and not mapped, because it may be any kind of file.
inline bool holds(const Fd& file, std::size_t at, std::uint64_t number) {
  std::uint64_t found = 0;
  return ::pread(file.get(), &found, sizeof found, static_cast<off_t>(at)) == sizeof found && found == number;
}

}  // namespace nzcl::verbs::segment
