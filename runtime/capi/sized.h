// Reads and writes structures of the C API that begin with their size. The caller may have been compiled with
// another version of nzcl.h than the library, in which a structure has fewer or more fields.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>

#include "nzcl/error.h"
#include "nzcl/version.h"

namespace nzcl::capi {

/// No structure of this API will ever be larger. A greater size means that the caller has not set it.
inline constexpr std::size_t kLargestStructure = 4096;

/// Throws Error{invalid_argument} unless `size` can be that of some version of the structure. New versions
/// add fields only at the end, and the size of every version is a multiple of the alignment, so other sizes
/// cannot occur.
template <typename Struct>
void check_size(const char* call, const char* name, std::size_t size, std::size_t least) {
  if (size >= least && size <= kLargestStructure && size % alignof(Struct) == 0) return;
  throw Error(
      ErrorCode::invalid_argument,
      fmt::format("{}: size is {}, which no version of {} has (from {} on, in steps of {}); set it to "
                  "sizeof({}) before the call",
                  call, size, name, least, alignof(Struct), name));
}

/// Returns the caller's structure in this version's layout. Fields that an older caller does not have become
/// zero, which is the default of every field. Fields that only a newer caller has must be zero, because other
/// values ask for something that this version does not have; they throw Error{unsupported}.
template <typename Struct>
Struct read_sized(const char* call, const char* name, const Struct* theirs, std::size_t least) {
  std::size_t size = 0;
  std::memcpy(&size, theirs, sizeof size);
  check_size<Struct>(call, name, size, least);
  Struct ours{};
  std::memcpy(&ours, theirs, std::min(size, sizeof ours));
  const auto* bytes = reinterpret_cast<const unsigned char*>(theirs);
  for (std::size_t i = sizeof ours; i < size; ++i) {
    if (bytes[i] == 0) continue;
    throw Error(
        ErrorCode::unsupported,
        fmt::format("{}: the caller's {} is of a later version, and its byte {} asks for something that "
                    "nzcl {} does not have; link with the nzcl whose nzcl.h it was compiled with",
                    call, name, i, NZCL_VERSION_STRING));
  }
  return ours;
}

/// Fills the caller's structure, but not beyond its size, which stays as it is. Fields that only a newer
/// caller has become zero.
template <typename Struct>
void write_sized(const char* call, const char* name, const Struct& ours, Struct* theirs, std::size_t least) {
  std::size_t size = 0;
  std::memcpy(&size, theirs, sizeof size);
  check_size<Struct>(call, name, size, least);
  auto* to = reinterpret_cast<unsigned char*>(theirs);
  const auto* from = reinterpret_cast<const unsigned char*>(&ours);
  const std::size_t known = std::min(size, sizeof ours);
  std::copy(from + sizeof size, from + known, to + sizeof size);
  std::fill(to + known, to + size, static_cast<unsigned char>(0));
}

}  // namespace nzcl::capi
