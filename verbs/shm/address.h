// What an endpoint of shm tells its peers, as bytes. Nothing here does I/O.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "verbs/segment/shared_memories.h"
#include "verbs/shm/listener.h"

namespace nzcl::verbs::shm {

/// The first part of an address. It travels as these bytes, and the ranges of shared memory follow it.
struct AddressStart {
  Name name;                // of the socket where the endpoint listens
  std::uint64_t token = 0;  // a random number that callers show
  /// A random number that is also in the segment, and proves that what was passed is this endpoint's.
  std::uint64_t nonce = 0;
  std::uint64_t segment_bytes = 0;
  std::uint32_t entries = 0;
  std::uint32_t reserved = 0;
};
static_assert(sizeof(AddressStart) == 48);

struct Address {
  AddressStart start;
  std::vector<segment::SharedRange> memories;  // in the order in which their descriptors are passed

  std::string encode() const;
  /// Throws Error{transport} if `text` is not an address of an endpoint that reaches this many peers, itself
  /// included.
  static Address decode(const std::string& text, std::size_t reached);
};

}  // namespace nzcl::verbs::shm
