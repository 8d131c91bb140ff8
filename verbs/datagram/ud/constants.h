// The depths of a UD queue pair.
#pragma once

#include <cstddef>
#include <cstdint>

#include "verbs/ibv/constants.h"

namespace nzcl::verbs::ibv {

/// Datagrams that may be under way from one port to its device. Each has a registered buffer, because the
/// caller's memory is not registered. Of every kSignalEvery of them one asks for a completion.
inline constexpr std::uint32_t kDatagramSends = 256;
static_assert(kDatagramSends % kSignalEvery == 0 && kSignalEvery <= kDatagramSends / 2,
              "a full queue must hold a signalled datagram, or it would never empty");

/// Receive requests of one port for datagrams. What comes while none is left is lost. More than what all
/// ranks may have under way to an aggregator would be of no use, and each takes registered memory for a
/// datagram.
inline constexpr std::size_t kMostDatagramReceives = 1024;

}  // namespace nzcl::verbs::ibv
