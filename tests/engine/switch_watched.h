// An aggregator whose packets and answers a test looks at.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/switch/simulation/aggregator.h"

namespace nzcl::engine::slot_pool::test {

/// What an aggregator sends in answer to one packet.
struct Sent {
  int rank = 0;  // or kToAll
  std::vector<std::byte> packet;
};

/// Keeps answers until they are sent, for aggregators that make them at once.
class KeptAnswers {
 public:
  void push(Sent sent) { sent_.push_back(std::move(sent)); }
  std::optional<Out> front() const {
    if (sent_.empty()) return std::nullopt;
    return Out{sent_.front().rank, sent_.front().packet};
  }
  void pop() { sent_.pop_front(); }

 private:
  std::deque<Sent> sent_;
};

class Watched final : public simulation::RackAggregator {
 public:
  /// Is told of each packet that the aggregator gets, from which rank, and how it answers.
  using Watch = std::function<void(int, std::span<const std::byte>, const std::vector<Sent>&)>;
  Watched(std::unique_ptr<simulation::RackAggregator> inner, Watch watch)
      : inner_(std::move(inner)), watch_(std::move(watch)) {}

  void receive(int rank, std::span<const std::byte> packet) override {
    inner_->receive(rank, packet);
    std::vector<Sent> answers;
    for (; const auto out = inner_->front(); inner_->pop())
      answers.push_back({out->rank, {out->packet.begin(), out->packet.end()}});
    watch_(rank, packet, answers);
    for (Sent& answer : answers) kept_.push(std::move(answer));
  }
  std::optional<Out> front() override { return kept_.front(); }
  void pop() override { kept_.pop(); }
  std::string failure() const override { return inner_->failure(); }
  std::uint64_t completed() const override { return inner_->completed(); }
  std::uint64_t refused() const override { return inner_->refused(); }

 private:
  const std::unique_ptr<simulation::RackAggregator> inner_;
  const Watch watch_;
  KeptAnswers kept_;
};

/// Makes SlotServers that are watched.
inline simulation::MakeAggregator watched(Watched::Watch watch) {
  return [watch = std::move(watch)](const Pool& pool) {
    return std::make_unique<Watched>(std::make_unique<simulation::ProcessAggregator>(pool), watch);
  };
}

}  // namespace nzcl::engine::slot_pool::test
