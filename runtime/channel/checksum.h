// The checksum of a message's bytes, which is optional (NZCL_CHECKSUM).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace nzcl::engine {

/// A CRC32C (Castagnoli, as of iSCSI, RFC 3720) over pieces of memory, one behind the other.
class Checksum {
 public:
  void add(std::span<const std::byte> bytes);
  std::uint32_t value() const { return ~state_; }

 private:
  std::uint32_t state_ = ~std::uint32_t{0};
};

inline std::uint32_t checksum_of(std::span<const std::byte> bytes) {
  Checksum sum;
  sum.add(bytes);
  return sum.value();
}

}  // namespace nzcl::engine
