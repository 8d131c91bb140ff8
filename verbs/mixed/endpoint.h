#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "verbs/fd.h"
#include "verbs/transport.h"

namespace nzcl::verbs::mixed {

/// Owns two endpoints that have the same peers, and are each connected to those at its level. Which
/// invariants hold, README.md says.
class MixedEndpoint final : public Endpoint {
 public:
  /// `levels` says where each peer is.
  MixedEndpoint(std::unique_ptr<Endpoint> between, std::unique_ptr<Endpoint> within,
                std::vector<Level> levels);

  std::string address_for(PeerId peer) override { return to(peer).address_for(peer); }
  void connect(std::span<const std::string> addresses, Deadline deadline) override;
  std::size_t post(std::span<const Write> writes) noexcept override;
  std::size_t poll(std::span<Completion> out) noexcept override;
  const std::byte* view(PeerId peer, RemoteMemory memory, std::size_t bytes) const noexcept override {
    return to(peer).view(peer, memory, bytes);
  }
  std::string failure() const override { return at(failed_).failure(); }
  std::size_t in_flight() const noexcept override {
    return at(Level::between).in_flight() + at(Level::within).in_flight();
  }
  int wait_fd() const noexcept override { return wait_fd_.get(); }
  bool prepare_wait() noexcept override;

 private:
  Endpoint& at(Level level) const { return *endpoints_[static_cast<std::size_t>(level)]; }
  Endpoint& to(PeerId peer) const { return at(levels_[peer]); }
  std::size_t poll_at(Level level, std::span<Completion> out) noexcept;

  const std::array<std::unique_ptr<Endpoint>, kLevels> endpoints_;  // by level
  const std::vector<Level> levels_;                                 // by peer
  Fd wait_fd_;
  Level next_ = Level::within;     // the one that is polled first; they take turns
  Level failed_ = Level::between;  // the one that has reported the last failure
};

}  // namespace nzcl::verbs::mixed
