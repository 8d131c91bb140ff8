#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "verbs/cma/device.h"
#include "verbs/cma/segment.h"
#include "verbs/completion_ring.h"

namespace nzcl::verbs::cma {

inline constexpr std::size_t kMaxPosted = 256;

/// A write is done within post(): copied, then its immediate put into the peer's ring for this endpoint.
/// Peers' immediates wait in rings in this endpoint's own segment. Who sleeps says so there, and is woken by
/// an eventfd.
///
/// Invariant: an immediate is pushed after its write and all earlier ones to that peer have been copied.
class CmaEndpoint final : public Endpoint {
 public:
  CmaEndpoint(CmaDevice& device, const EndpointOptions& options);

  std::string address_for(PeerId peer) override;
  void connect(std::span<const std::string> addresses, Deadline deadline) override;
  std::size_t post(std::span<const Write> writes) noexcept override;
  std::size_t poll(std::span<Completion> out) noexcept override;
  const std::byte* view(PeerId peer, RemoteMemory memory, std::size_t bytes) const noexcept override;
  std::string failure() const override { return failure_; }
  std::size_t in_flight() const noexcept override { return in_flight_; }
  int wait_fd() const noexcept override { return event_.get(); }
  bool prepare_wait() noexcept override;

 private:
  struct Window {  // a peer's memory, mapped here
    std::uint64_t begin = 0, end = 0;
    Mapping mapping;
  };
  struct Peer {
    /// Where [begin, begin + bytes) of its memory is mapped here, or nullptr.
    std::byte* find(std::uint64_t begin, std::uint64_t bytes) const noexcept;

    int pid = -1;
    Mapping mapping;
    Segment segment;
    RingWriter ring;  // this endpoint's, in the peer's segment
    Fd event;
    std::vector<Window> windows;
    bool connected = false, broken = false;
  };
  bool copy(Peer& peer, const Write& write, std::uint64_t bytes) noexcept;
  bool copy_by_kernel(Peer& peer, const Write& write, std::uint64_t bytes) noexcept;
  void wake_readers(std::span<const Write> writes) noexcept;

  CmaDevice& device_;
  const EndpointOptions options_;
  std::uint32_t entries_;
  Fd memory_, event_;
  Mapping mapping_;
  Segment segment_;
  std::vector<RingReader> rings_;  // by peer
  std::vector<Peer> peers_;
  std::size_t next_peer_ = 0;  // polled first: nobody waits for ever
  CompletionRing ready_;       // what is in flight, and a failure per peer
  std::size_t in_flight_ = 0;
  std::string failure_;
};

}  // namespace nzcl::verbs::cma
