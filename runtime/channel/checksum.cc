#include "runtime/channel/checksum.h"

#include <isa-l/crc.h>

#include <algorithm>

namespace nzcl::engine {

void Checksum::add(std::span<const std::byte> bytes) {
  constexpr std::size_t kMostAtOnce = std::size_t{1} << 30;  // the library takes an int
  while (!bytes.empty()) {
    const auto part = bytes.first(std::min(bytes.size(), kMostAtOnce));
    // It only reads, although the pointer is none to constant bytes.
    auto* const at = reinterpret_cast<unsigned char*>(const_cast<std::byte*>(part.data()));
    state_ = crc32_iscsi(at, static_cast<int>(part.size()), state_);
    bytes = bytes.subspan(part.size());
  }
}

}  // namespace nzcl::engine
