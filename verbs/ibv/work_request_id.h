// The id that a work request carries and its completion returns.
#pragma once

#include <cstdint>

namespace nzcl::verbs::ibv {

/// 63       62        32 31        0
/// [receive][ peer: 31 ][ sequence ]
struct WorkRequestId {
  /// In place of a peer, in the requests for calls (calls.h). `sequence` is a slot then.
  static constexpr std::uint32_t kCalls = 0x7fffffff;
  bool receive = false;
  std::uint32_t peer = 0;      // below 2^31
  std::uint32_t sequence = 0;  // number of the write on its queue pair, modulo 2^32

  constexpr std::uint64_t encode() const {
    return static_cast<std::uint64_t>(receive) << 63 | static_cast<std::uint64_t>(peer & 0x7fffffff) << 32 |
           sequence;
  }
  static constexpr WorkRequestId decode(std::uint64_t bits) {
    return {bits >> 63 != 0, static_cast<std::uint32_t>(bits >> 32) & 0x7fffffff,
            static_cast<std::uint32_t>(bits)};
  }
  friend bool operator==(const WorkRequestId&, const WorkRequestId&) = default;
};

}  // namespace nzcl::verbs::ibv
