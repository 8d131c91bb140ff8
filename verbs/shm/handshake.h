// How an endpoint meets its peers: each proves that it is who it should be, and passes its descriptors.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "verbs/shm/listener.h"
#include "verbs/transport.h"

namespace nzcl::verbs::shm {

/// What a caller sends with its descriptors, and what it is answered. It travels as these bytes.
struct Greeting {
  static constexpr std::uint64_t kMagic = 0x316d68736c637a6e;  // "nzclshm1"

  std::uint64_t magic = kMagic;
  std::uint64_t token = 0;  // of the one who is greeted
  PeerId from = 0;
  std::uint32_t reserved = 0;
};
static_assert(sizeof(Greeting) == 24);

/// The steps with one peer, of which the one with the greater index calls:
///  1. It connects to the other's listener, and sends a greeting with its descriptors.
///  2. The other one sees by the token that the caller has read its address, and answers likewise.
/// A caller without the token is dropped and nobody else hears of it. No step but an answer waits for what
/// the peer does, so peers may come in any order.
class Handshake {
 public:
  struct Peer {
    PeerId id = 0;
    Name name;
    std::uint64_t token = 0;
  };
  /// Is given what a peer has passed, and the connection to it, which is closed when the peer ends.
  using Met = std::function<void(PeerId, Fd connection, std::vector<Fd> descriptors)>;

  /// `token` is what callers have to show, and `descriptors` what peers are passed.
  Handshake(Listener& listener, const EndpointOptions& options, std::uint64_t token,
            std::vector<int> descriptors);

  /// Meets these peers. Throws Error{timeout, peer_failed, system} naming the peer, Error{aborted} when told
  /// to by the options, and what `met` throws.
  void meet(std::span<const Peer> peers, Deadline deadline, const Met& met);

 private:
  enum class Step : std::uint8_t { call, greet, hear, be_called, answer, done };
  struct Party {
    Peer peer;
    Step step = Step::call;
    Fd connection;
    std::vector<Fd> descriptors;
  };
  bool advance(Party& party, const Met& met);
  void call(Party& party);
  bool send(Party& party);
  bool hear(Party& party);
  void hear_callers();
  void wait(Deadline deadline) const;
  [[noreturn]] void give_up() const;

  Listener& listener_;
  const EndpointOptions& options_;
  const PeerId self_ = options_.self;
  const std::uint64_t token_;
  const std::vector<int> descriptors_;
  std::vector<Party> parties_;
  std::vector<Fd> callers_;  // that have not shown a token yet
};

}  // namespace nzcl::verbs::shm
