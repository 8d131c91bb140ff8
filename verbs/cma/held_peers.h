// Descriptors of peers' processes, of as many peers as there may be at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "nzcl/error.h"
#include "verbs/cma/address.h"
#include "verbs/cma/handles.h"
#include "verbs/fd.h"

namespace nzcl::verbs::cma {

/// Keeps two descriptors of each peer that it holds: its process, and the eventfd of its endpoint. If it may
/// not hold all peers at a time, they take turns: whoever has been held longest makes room for the one that
/// is needed now, and is opened anew when it is needed itself. What is opened is always the process that gave
/// the address, even if its id was used by another one before or after it. For one thread.
class HeldPeers {
 public:
  struct Held {
    Process process;
    Fd event;
  };
  static constexpr std::size_t kDescriptors = 2;  // of each that is held

  /// Peers have numbers from 0. `most` is how many are held at a time.
  HeldPeers(std::size_t peers, std::size_t most);

  /// Opens a peer for the first time. Throws Error{unavailable, system, peer_failed}. The reference holds
  /// until the next call.
  const Held& open(std::size_t peer, const AddressStart& start);
  /// A peer that has been opened before, or nullptr if it cannot be reached; error() says why. The pointer
  /// holds until the next call.
  const Held* get(std::size_t peer) noexcept;
  const Error& error() const { return *error_; }
  /// The process id of a peer that has been opened.
  int pid(std::size_t peer) const { return peers_[peer].start.pid; }

 private:
  static constexpr std::uint32_t kNowhere = ~std::uint32_t{0};
  struct Peer {
    AddressStart start;
    std::uint32_t place = kNowhere;  // in places_
  };
  struct Place {
    std::optional<std::size_t> peer;
    Held held;
  };
  const Held& hold(std::size_t peer);

  std::vector<Peer> peers_;
  std::vector<Place> places_;
  std::uint32_t next_ = 0;  // the place whose peer has been held longest
  std::optional<Error> error_;
};

}  // namespace nzcl::verbs::cma
