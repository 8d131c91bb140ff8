// The proof of membership that both sides of a connection send each other before it exists, as private data
// of rdma_cm's request and reply. Nothing here does I/O.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include "verbs/transport.h"

namespace nzcl::verbs::cm {

/// A random number that is made for one pair of endpoints and sent to that peer over the runtime's
/// authenticated bootstrap. A process that shows it therefore belongs to the job.
using Token = std::array<std::uint8_t, 16>;

struct Greeting {
  static constexpr std::uint32_t kMagic = 0x6c637a6e;  // "nzcl"
  static constexpr std::uint32_t kVersion = 1;
  std::uint32_t magic = kMagic;
  std::uint32_t version = kVersion;
  PeerId from = 0, to = 0;
  Token token{};

  std::span<const std::uint8_t> bytes() const {
    return {reinterpret_cast<const std::uint8_t*>(this), sizeof *this};
  }
  /// Reads a greeting from private data, which rdma_cm pads, so `data` may be longer. Returns nothing if it
  /// is not a greeting of this version.
  static std::optional<Greeting> read(std::span<const std::uint8_t> data) {
    Greeting greeting;
    if (data.size() < sizeof greeting) return std::nullopt;
    std::memcpy(&greeting, data.data(), sizeof greeting);
    if (greeting.magic != kMagic || greeting.version != kVersion) return std::nullopt;
    return greeting;
  }
};
static_assert(sizeof(Greeting) == 32);
static_assert(sizeof(Greeting) <= 56, "rdma_connect(3): RDMA_PS_TCP carries 56 bytes");

}  // namespace nzcl::verbs::cm
