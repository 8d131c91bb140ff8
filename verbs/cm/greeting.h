// What both sides of a connection show each other before it exists: the private data of rdma_cm's request and
// reply. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include "verbs/transport.h"

namespace nzcl::verbs::cm {

/// Made for one pair of endpoints and told to that peer over the runtime's authenticated bootstrap: who shows
/// it belongs to the job.
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
  /// `data` may be longer: rdma_cm pads it. Nothing: that is no greeting of this version.
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
