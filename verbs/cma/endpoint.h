#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "verbs/cma/device.h"
#include "verbs/cma/next_write.h"
#include "verbs/cma/shared_segment.h"
#include "verbs/completion_ring.h"

namespace nzcl::verbs::cma {

inline constexpr std::size_t kMaxPosted = 256;

/// An endpoint whose post() does all of the work: when post() returns, its writes have landed.
///
/// The life of a write with immediate:
/// 1. The writer copies the bytes into the peer's memory: by memcpy if that is mapped here (Window),
/// otherwise by the kernel.
/// 2. It pushes the immediate into the ring that the peer's segment has for this endpoint. A full ring makes
/// post() accept fewer writes. A segment has rings for the peers that its endpoint reaches and for no others,
/// in the order of their numbers; these reach each other, so that all of them agree about the order.
/// 3. It wakes the peer through an eventfd, if the peer's segment says that it sleeps.
/// 4. The peer finds the immediate when it polls the rings of its own segment.
///
/// Invariant: an immediate is pushed only after its own write and all earlier writes to that peer have been
/// copied.
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
  struct Window {  // a range of a peer's memory that is mapped here
    std::uint64_t begin = 0, end = 0;
    Mapping mapping;
  };
  struct Peer {
    /// The address at which [begin, begin + bytes) of the peer's memory is mapped here, or nullptr.
    std::byte* find(std::uint64_t begin, std::uint64_t bytes) const noexcept;

    Process process;
    Mapping mapping;
    SharedSegment segment;
    RingWriter ring;  // the ring for this endpoint, in the peer's segment
    NextWrite next;   // of small messages
    Fd event;
    std::vector<Window> windows;
    bool connected = false, broken = false;
  };
  void connect_to(Peer& peer, const std::string& text) const;
  void lose(Peer& peer, PeerId id) noexcept;
  bool copy(Peer& peer, const Write& write, std::uint64_t bytes) noexcept;
  bool copy_by_kernel(Peer& peer, const Write& write, std::uint64_t bytes) noexcept;
  void wake_readers(std::span<const Write> writes) noexcept;
  void expect_more(std::span<const Write> writes) noexcept;

  CmaDevice& device_;
  const EndpointOptions options_;
  const std::vector<std::uint32_t> ring_of_;  // by peer, for those that this endpoint reaches
  const std::size_t reached_;                 // how many these are, itself included
  const std::uint32_t entries_;
  std::uint64_t nonce_;
  Fd memory_, event_;
  Mapping mapping_;
  SharedSegment segment_;
  std::vector<RingReader> rings_;  // of the peers that it reaches
  std::vector<Peer> peers_;
  std::size_t next_ring_ = 0;  // the ring that is polled first; in turn, so that no peer waits for ever
  CompletionRing ready_;       // has room for all writes in flight, and a failure per peer
  std::size_t in_flight_ = 0;
  std::string failure_;
};

}  // namespace nzcl::verbs::cma
