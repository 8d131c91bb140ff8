// What sums packets in a simulated rack: a machine that is given packets and asked for packets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "runtime/switch/answers.h"
#include "runtime/switch/slot_server.h"

namespace nzcl::simulation {

class RackAggregator {
 public:
  virtual ~RackAggregator() = default;
  /// Takes a packet that came from this rank.
  virtual void receive(int rank, std::span<const std::byte> packet) = 0;
  /// The packet to send next; its bytes stay valid until receive() or pop().
  virtual std::optional<engine::slot_pool::Out> front() = 0;
  virtual void pop() = 0;
  virtual std::string failure() const = 0;
  virtual std::uint64_t completed() const = 0;
  virtual std::uint64_t refused() const = 0;
};

using MakeAggregator = std::function<std::unique_ptr<RackAggregator>(const engine::slot_pool::Pool& pool)>;

class ProcessAggregator final : public RackAggregator {
 public:
  explicit ProcessAggregator(const engine::slot_pool::Pool& pool) : server_(pool) {}
  void receive(int rank, std::span<const std::byte> packet) override { server_.receive(rank, packet); }
  std::optional<engine::slot_pool::Out> front() override { return server_.front(); }
  void pop() override { server_.pop(); }
  std::string failure() const override { return server_.failure(); }
  std::uint64_t completed() const override { return server_.completed(); }
  std::uint64_t refused() const override { return server_.refused(); }

 private:
  engine::slot_pool::SlotServer server_;
};

}  // namespace nzcl::simulation
