// What an endpoint of cma tells its peers, as bytes. Nothing here does I/O.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace nzcl::verbs::cma {

/// A range of Device::allocate() memory that peers can map, in the form that travels.
struct SharedMemory {
  std::uint64_t address = 0, bytes = 0;
  std::int32_t fd = -1;
  std::int32_t reserved = 0;
};

/// The first part of an address. It travels as these bytes, and the SharedMemory entries follow it.
struct AddressStart {
  std::int32_t pid = 0, segment_fd = -1, event_fd = -1;
  std::uint32_t entries = 0;
  std::uint64_t segment_bytes = 0;
  /// A random number that is also in the segment. It proves that a descriptor belongs to this endpoint: a
  /// process that got the id of one that has ended does not have it.
  std::uint64_t nonce = 0;
};

struct Address {
  AddressStart start;
  std::vector<SharedMemory> memories;

  std::string encode() const;
  /// Throws Error{transport} if `text` is not an address of an endpoint that reaches this many peers, itself
  /// included.
  static Address decode(const std::string& text, std::size_t reached);
};

}  // namespace nzcl::verbs::cma
