#include "verbs/shm/endpoint.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "nzcl/error.h"
#include "verbs/descriptors.h"
#include "verbs/random.h"
#include "verbs/segment/nonce.h"
#include "verbs/shm/address.h"
#include "verbs/shm/handshake.h"
#include "verbs/shm/passing.h"

namespace nzcl::verbs::shm {

ShmEndpoint::ShmEndpoint(ShmDevice& device, const EndpointOptions& options)
    : SegmentEndpoint("shm", options, kBounceArea),
      device_(device),
      token_(random_number()),
      links_(options.peers),
      readers_(layout().peers),
      peer_of_ring_(layout().peers) {
  for (PeerId peer = 0; peer < options.peers; ++peer) {
    if (options.reaches(peer)) peer_of_ring_[ring_of(peer)] = peer;
  }
  // There is room for others that only look whether somebody listens (remove_leftovers()).
  if (layout().peers > 1) listener_.emplace(layout().peers + 16);
}

std::string ShmEndpoint::address_for(PeerId) {
  if (!listener_) return {};
  offer_memory();
  Address address{.start = {.name = listener_->name(),
                            .token = token_,
                            .nonce = nonce(),
                            .segment_bytes = layout().bytes(),
                            .entries = layout().entries},
                  .memories = {}};
  for (const auto& memory : offered_) address.memories.push_back(memory.range);
  return address.encode();
}

/// Keeps descriptors of the memory that peers are told of, because others than this endpoint's owner may
/// release theirs meanwhile.
void ShmEndpoint::offer_memory() {
  if (std::exchange(has_offered_, true)) return;
  for (const auto& [range, fd] : device_.memories().within(options().allocated)) {
    Fd copy(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
    if (copy.get() < 0)
      throw Error(ErrorCode::system,
                  fmt::format("shm: no descriptor of shared memory: {}", error_text(errno)));
    offered_.push_back({range, std::move(copy)});
  }
}

std::vector<int> ShmEndpoint::offered_descriptors() const {
  std::vector<int> all{segment_fd(), event_fd()};
  for (const auto& memory : offered_) all.push_back(memory.fd.get());
  if (all.size() > kMostPassed)
    throw Error(
        ErrorCode::system,
        fmt::format("shm: {} pieces of shared memory are more than a peer can be passed; say which of "
                    "them an endpoint uses (EndpointOptions::allocated)",
                    offered_.size()));
  return all;
}

void ShmEndpoint::connect(std::span<const std::string> addresses, Deadline deadline) {
  std::vector<Handshake::Peer> peers;
  std::vector<Address> decoded(addresses.size());
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    if (addresses[i].empty()) continue;
    try {
      decoded[i] = Address::decode(addresses[i], layout().peers);
    } catch (const Error& e) {
      throw Error(e.code(), fmt::format("{} (connecting to peer {})", e.what(), i));
    }
    peers.push_back({static_cast<PeerId>(i), decoded[i].start.name, decoded[i].start.token});
  }
  const auto met = [&](PeerId peer, Fd connection, std::vector<Fd> descriptors) {
    const Address& address = decoded[peer];
    if (descriptors.size() != 2 + address.memories.size() ||
        !segment::holds(descriptors[0], segment::SharedSegment::kNonceAt, address.start.nonce)) {
      throw Error(ErrorCode::peer_failed,
                  fmt::format("shm: what was passed is not what the address of peer {} speaks of", peer));
    }
    segment::SharedByPeer shared;
    shared.segment = std::move(descriptors[0]);
    shared.entries = address.start.entries, shared.segment_bytes = address.start.segment_bytes;
    for (std::size_t i = 0; i < address.memories.size(); ++i)
      shared.memories.push_back({address.memories[i], std::move(descriptors[2 + i])});
    join(peer, std::move(shared));
    links_[peer] = {std::move(connection), std::move(descriptors[1]),
                    BounceWriter(BounceRing(segment_of(peer).bounce(ring_of(options().self))))};
    readers_[ring_of(peer)] = BounceReader(BounceRing(segment().bounce(ring_of(peer))));
  };
  if (listener_ && !peers.empty()) {
    offer_memory();
    Handshake(*listener_, options(), token_, offered_descriptors()).meet(peers, deadline, met);
  }
  listener_.reset();
  offered_.clear();
}

std::size_t ShmEndpoint::poll(std::span<Completion> out) noexcept {
  return poll_rings(out, [this](std::size_t ring) { return readers_[ring].empty() || take(ring); });
}

/// Copies what a peer has written through its ring. Returns false, and reports it, if that is not believed.
bool ShmEndpoint::take(std::size_t ring) noexcept {
  const char* const wrong =
      readers_[ring].take([this](const BounceRecord& record, const std::byte* bytes) -> const char* {
        if (device_.regions().write(record.key, record.address, bytes, record.bytes)) return nullptr;
        return "wanted to write where nothing is registered, or with a wrong key";
      });
  if (wrong == nullptr) return true;
  failure_ = fmt::format("shm: peer {} {}", peer_of_ring_[ring], wrong);
  readers_[ring] = BounceReader();
  lose(peer_of_ring_[ring]);
  return false;
}

ShmEndpoint::Moved ShmEndpoint::write_unmapped(PeerId peer, const Write& write,
                                               std::uint64_t bytes) noexcept {
  if (!links_[peer].ring.push(write, bytes)) return Moved::nothing_yet;
  wake_for(peer);
  return Moved::all;
}

std::string ShmEndpoint::why_lost(PeerId peer) noexcept {
  pollfd connection{.fd = links_[peer].connection.get(), .events = 0, .revents = 0};
  const bool ended = ::poll(&connection, 1, 0) > 0 && (connection.revents & (POLLHUP | POLLERR)) != 0;
  return ended ? fmt::format("shm: peer {} has ended", peer) : std::string();
}

bool ShmEndpoint::wake(PeerId peer) noexcept {
  ring(links_[peer].event);
  return true;
}

bool ShmEndpoint::has_more_to_poll() const noexcept {
  return std::ranges::any_of(readers_, [](const BounceReader& reader) { return !reader.empty(); });
}

}  // namespace nzcl::verbs::shm
