// A device without a network: what is posted is gone at once, and nothing ever arrives. With it one member of
// any number can be made alone, to see what it takes.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "verbs/transport.h"

namespace perf::lane {

class QuietRegion final : public nzcl::verbs::MemoryRegion {
 public:
  explicit QuietRegion(std::span<std::byte> bytes) : bytes_(bytes) {}
  std::span<std::byte> bytes() const noexcept override { return bytes_; }
  nzcl::verbs::RemoteMemory remote() const noexcept override {
    return {reinterpret_cast<std::uint64_t>(bytes_.data()), 1};
  }

 private:
  const std::span<std::byte> bytes_;
};

/// Says of every write that it has ended, in the next poll.
class QuietEndpoint final : public nzcl::verbs::Endpoint {
 public:
  std::string address_for(nzcl::verbs::PeerId) override { return "quiet"; }
  void connect(std::span<const std::string>, nzcl::verbs::Deadline) override {}
  std::size_t post(std::span<const nzcl::verbs::Write> writes) noexcept override {
    if (writes.empty() || pending_) return 0;
    context_ = writes.front().context;
    pending_ = true;
    return 1;
  }
  std::size_t poll(std::span<nzcl::verbs::Completion> out) noexcept override {
    if (!pending_ || out.empty()) return 0;
    out.front() = {.kind = nzcl::verbs::Completion::Kind::written,
                   .peer = nzcl::verbs::Completion::kNoPeer,
                   .immediate = 0,
                   .context = context_};
    pending_ = false;
    return 1;
  }
  /// Every peer's memory seems to be where it says, in this process. It must not be read.
  const std::byte* view(nzcl::verbs::PeerId, nzcl::verbs::RemoteMemory memory,
                        std::size_t) const noexcept override {
    return reinterpret_cast<const std::byte*>(memory.address);
  }
  std::string failure() const override { return {}; }
  std::size_t in_flight() const noexcept override { return pending_ ? 1 : 0; }

 private:
  bool pending_ = false;
  std::uint64_t context_ = 0;
};

/// Counts the bytes that it has allocated. A transport that pins memory would make all of them resident.
class QuietDevice final : public nzcl::verbs::Device {
 public:
  explicit QuietDevice(const nzcl::verbs::Limits& limits) : limits_(limits) {}
  std::string name() const override { return "quiet"; }
  const nzcl::verbs::Limits& limits() const noexcept override { return limits_; }
  std::unique_ptr<nzcl::verbs::MemoryRegion> register_memory(std::span<std::byte> bytes,
                                                             nzcl::MemoryKind) override {
    return std::make_unique<QuietRegion>(bytes);
  }
  std::span<std::byte> allocate(std::size_t bytes) override {
    allocated_ += bytes;
    return Device::allocate(bytes);
  }
  std::unique_ptr<nzcl::verbs::Endpoint> open_endpoint(const nzcl::verbs::EndpointOptions& options) override {
    arrivals_ = options.arrivals;
    return std::make_unique<QuietEndpoint>();
  }

  std::size_t allocated() const { return allocated_; }
  /// What the last endpoint was opened for.
  std::size_t arrivals() const { return arrivals_; }

 private:
  const nzcl::verbs::Limits limits_;
  std::size_t allocated_ = 0, arrivals_ = 0;
};

}  // namespace perf::lane
