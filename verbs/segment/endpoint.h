#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "verbs/completion_ring.h"
#include "verbs/segment/next_write.h"
#include "verbs/segment/shared_memories.h"
#include "verbs/segment/shared_segment.h"
#include "verbs/transport.h"

namespace nzcl::verbs::segment {

inline constexpr std::size_t kMaxPosted = 256;

/// What a peer shares, as descriptors of this process that have come from it.
struct SharedByPeer {
  struct Memory {
    SharedRange range;
    Fd fd;
  };
  Fd segment;
  std::uint32_t entries = 0;
  std::uint64_t segment_bytes = 0;
  std::vector<Memory> memories;
};

/// An endpoint that writes its peers' shared memory itself: when post() returns, its writes have left.
///
/// The life of a write with immediate:
/// 1. The writer copies the bytes into the peer's memory if that is mapped here (Window); otherwise the
/// transport brings them there in its own way.
/// 2. It pushes the immediate into the ring that the peer's segment has for this endpoint. A full ring makes
/// post() accept fewer writes. A segment has rings for the peers that its endpoint reaches and for no others,
/// in the order of their numbers; these reach each other, so that all of them agree about the order.
/// 3. It wakes the peer through the peer's eventfd, if the peer's segment says that it sleeps.
/// 4. The peer finds the immediate when it polls the rings of its own segment.
///
/// Invariant: an immediate is pushed only after its own write and all earlier writes to that peer are where
/// the peer finds them.
class SegmentEndpoint : public Endpoint {
 public:
  std::size_t post(std::span<const Write> writes) noexcept final;
  const std::byte* view(PeerId peer, RemoteMemory memory, std::size_t bytes) const noexcept final;
  std::string failure() const final { return failure_; }
  std::size_t in_flight() const noexcept final { return in_flight_; }
  int wait_fd() const noexcept final { return event_.get(); }
  bool prepare_wait() noexcept final;

 protected:
  /// `transport` begins the texts of errors. `bounce` is as in SharedSegment::Layout.
  SegmentEndpoint(const char* transport, const EndpointOptions& options, std::size_t bounce);

  enum class Moved : std::uint8_t { all, nothing_yet, failed };
  /// Brings a write to memory of the peer that is not mapped here. `nothing_yet`: there is no room, or not
  /// all of it at once. `failed`: why is in `failure_`.
  virtual Moved write_unmapped(PeerId peer, const Write& write, std::uint64_t bytes) noexcept = 0;
  /// Why nothing can come from the peer any more, or an empty string.
  virtual std::string why_lost(PeerId peer) noexcept = 0;
  /// Wakes a peer whose segment says that it sleeps. Returns false if that is not possible; why is in
  /// `failure_`.
  virtual bool wake(PeerId peer) noexcept = 0;
  /// Whether there is something to poll besides completions and immediates.
  virtual bool has_more_to_poll() const noexcept { return false; }

  /// Maps what the peer shares. To be called once for each peer that is connected.
  void join(PeerId peer, SharedByPeer shared);
  /// A peer has written something that is no immediate: its receiver is to be woken at the end of post().
  void wake_for(PeerId peer) noexcept { peers_[peer].to_wake = true; }
  /// Reports the failure of a peer whose text is in `failure_`. It is reported once.
  void lose(PeerId peer) noexcept;

  /// poll() of the transport, which it gives what is to be done with a ring, by its number, after immediates
  /// have been taken from it and before they are returned. If `take` returns false they are not returned, and
  /// the ring is not read any more.
  template <typename Take>
  std::size_t poll_rings(std::span<Completion> out, Take take) noexcept;

  const EndpointOptions& options() const { return options_; }
  SharedSegment::Layout layout() const { return {reached_, entries_, bounce_}; }
  const SharedSegment& segment() const { return segment_; }
  std::uint64_t nonce() const { return nonce_; }
  int segment_fd() const { return memory_.get(); }
  int event_fd() const { return event_.get(); }
  /// Makes the descriptor of a peer's eventfd readable.
  static void ring(const Fd& event) noexcept;
  /// The segment of a peer that has joined.
  const SharedSegment& segment_of(PeerId peer) const { return peers_[peer].segment; }
  /// The number of a peer's ring in this endpoint's segment, and of this endpoint's ring in those of its
  /// peers.
  std::uint32_t ring_of(PeerId peer) const { return ring_of_[peer]; }

  std::string failure_;

 private:
  struct Window {  // a range of a peer's memory that is mapped here
    std::uint64_t begin = 0, end = 0;
    Mapping mapping;
  };
  struct Peer {
    /// The address at which [begin, begin + bytes) of the peer's memory is mapped here, or nullptr.
    std::byte* find(std::uint64_t begin, std::uint64_t bytes) const noexcept;

    Mapping mapping;
    SharedSegment segment;
    RingWriter ring;  // the ring for this endpoint, in the peer's segment
    NextWrite next;   // of small messages
    std::vector<Window> windows;
    bool connected = false, broken = false, to_wake = false;
  };
  Moved copy(const Write& write, std::uint64_t bytes) noexcept;
  void wake_readers(std::span<const Write> writes) noexcept;
  void expect_more(std::span<const Write> writes) noexcept;

  const EndpointOptions options_;
  const std::vector<std::uint32_t> ring_of_;  // by peer, for those that this endpoint reaches
  const std::size_t reached_;                 // how many these are, itself included
  const std::uint32_t entries_;
  const std::size_t bounce_;
  std::uint64_t nonce_;
  Fd memory_, event_;
  Mapping mapping_;
  SharedSegment segment_;
  std::vector<RingReader> rings_;  // of the peers that it reaches
  std::vector<Peer> peers_;
  std::size_t next_ring_ = 0;  // the ring that is polled first; in turn, so that no peer waits for ever
  CompletionRing ready_;       // has room for all writes in flight, and a failure per peer
  std::size_t in_flight_ = 0;
};

template <typename Take>
std::size_t SegmentEndpoint::poll_rings(std::span<Completion> out, Take take) noexcept {
  std::size_t n = ready_.pop(out);
  for (const Completion& c : out.first(n)) in_flight_ -= c.kind == Completion::Kind::written ? 1 : 0;
  std::size_t ring = next_ring_;
  for (std::size_t i = 0; i < rings_.size() && n < out.size(); ++i) {
    const std::size_t before = n;
    std::uint32_t immediate = 0;
    while (n < out.size() && rings_[ring].pop(immediate)) {
      out[n++] = {.kind = Completion::Kind::arrived,
                  .peer = Completion::kNoPeer,
                  .immediate = immediate,
                  .context = 0};
    }
    if (!take(ring)) n = before, rings_[ring] = RingReader::of_nothing();
    if (++ring == rings_.size()) ring = 0;
  }
  if (++next_ring_ >= rings_.size()) next_ring_ = 0;
  return n;
}

}  // namespace nzcl::verbs::segment
