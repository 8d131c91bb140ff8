#include "verbs/cma/held_peers.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "verbs/segment/nonce.h"
#include "verbs/segment/shared_segment.h"

namespace nzcl::verbs::cma {
namespace {

/// The pidfd is opened first. All descriptors are then taken from that one process, which proves by the
/// number in its segment that it gave the address.
HeldPeers::Held open_process(const AddressStart& start) {
  HeldPeers::Held held{.process = Process(start.pid), .event = {}};
  if (!segment::holds(held.process.take_fd(start.segment_fd), segment::SharedSegment::kNonceAt,
                      start.nonce)) {
    throw Error(ErrorCode::peer_failed,
                fmt::format("cma: process {} is not the one that gave this address, which has ended; "
                            "another process has its id now",
                            start.pid));
  }
  held.event = held.process.take_fd(start.event_fd);
  return held;
}

}  // namespace

HeldPeers::HeldPeers(std::size_t peers, std::size_t most)
    : peers_(peers), places_(std::clamp<std::size_t>(most, 1, std::max<std::size_t>(peers, 1))) {}

const HeldPeers::Held& HeldPeers::open(std::size_t peer, const AddressStart& start) {
  peers_[peer].start = start;
  return hold(peer);
}

const HeldPeers::Held* HeldPeers::get(std::size_t peer) noexcept {
  if (peers_[peer].place != kNowhere) return &places_[peers_[peer].place].held;
  try {
    return &hold(peer);
  } catch (const Error& e) {
    error_ = e;
    return nullptr;
  }
}

/// The descriptors of the peer that makes room are closed first, so that there are never more than may be
/// held.
const HeldPeers::Held& HeldPeers::hold(std::size_t peer) {
  Place& place = places_[next_];
  if (place.peer) peers_[*std::exchange(place.peer, std::nullopt)].place = kNowhere;
  place.held = {};
  place.held = open_process(peers_[peer].start);
  place.peer = peer;
  peers_[peer].place = next_;
  next_ = (next_ + 1) % static_cast<std::uint32_t>(places_.size());
  return place.held;
}

}  // namespace nzcl::verbs::cma
