// A tensor in memory for the tests of the switch exchange, and a rack of ranks on a simulated network.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "runtime/exchange/switch/slot_server.h"
#include "runtime/exchange/switch/slot_worker.h"
#include "verbs/simulated/network.h"

namespace nzcl::engine::slot_pool::test {

/// int32 values in pieces of a fixed size, the last of which may be shorter. A piece is held if one of its
/// values is not zero.
class MemoryTensor final : public Tensor {
 public:
  MemoryTensor(std::vector<std::int32_t> values, std::uint32_t piece_elements, std::uint32_t slots,
               std::uint32_t shape = 77)
      : input(std::move(values)),
        output(input.size()),
        piece_elements_(piece_elements),
        shape_(shape),
        positions_(slots) {}

  std::uint32_t pieces() const override {
    return static_cast<std::uint32_t>((input.size() + piece_elements_ - 1) / piece_elements_);
  }
  std::uint32_t elements(std::uint32_t piece) const override {
    return std::min<std::uint32_t>(piece_elements_,
                                   static_cast<std::uint32_t>(input.size()) - piece * piece_elements_);
  }
  std::uint32_t shape() const override { return shape_; }
  bool look_ahead(std::uint32_t from, std::uint32_t step, Ahead& ahead) override {
    if (blind > 0) return --blind, false;
    ahead = {};
    for (std::uint64_t p = from; p < pieces(); p += step) {
      const auto piece = static_cast<std::uint32_t>(p);
      for (std::uint32_t i = 0; i < elements(piece); ++i) {
        if (input[piece * piece_elements_ + i] == 0) continue;
        ahead = {piece, static_cast<std::uint8_t>(piece % 200 + exponent_shift)};
        return true;
      }
    }
    return true;
  }
  Filled fill(std::uint32_t piece, std::uint8_t exponent, std::span<std::int32_t> to) override {
    EXPECT_GE(exponent, piece % 200 + exponent_shift)
        << "the exponent is the largest of all ranks that hold it";
    std::copy_n(&input[piece * piece_elements_], elements(piece), to.begin());
    return {elements(piece), 1, clamps};
  }
  void store(std::uint32_t piece, std::uint8_t exponent, std::uint64_t blocks,
             std::span<const std::int32_t> sums) override {
    EXPECT_EQ(sums.size(), elements(piece));
    EXPECT_EQ(blocks, 1u);
    exponents.push_back(exponent);
    std::copy(sums.begin(), sums.end(), &output[piece * piece_elements_]);
    ++stored;
  }
  void advanced(std::uint32_t slot, std::uint32_t position) override {
    EXPECT_GE(position, positions_.at(slot));
    slots_done += position == pieces() ? 1 : 0;
    positions_.at(slot) = position;
  }
  bool done() const { return slots_done == positions_.size(); }

  const std::vector<std::int32_t> input;
  std::vector<std::int32_t> output;
  std::vector<std::uint8_t> exponents;
  std::size_t stored = 0, slots_done = 0;
  int blind = 0;                    // look_ahead() says this many times that it does not know
  std::uint8_t exponent_shift = 0;  // what this rank adds to its exponents
  bool clamps = false;

 private:
  const std::uint32_t piece_elements_, shape_;
  std::vector<std::uint32_t> positions_;
};

inline const Job kJob{0x1234, {5, 6}};

/// Values of which a share of the pieces, chosen by the seed, is not zero.
inline std::vector<std::int32_t> random_values(std::size_t count, std::uint32_t piece, double density,
                                               unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::int32_t> values(count);
  for (std::size_t begin = 0; begin < count; begin += piece) {
    if (std::uniform_real_distribution<>(0, 1)(random) >= density) continue;
    for (std::size_t i = begin; i < std::min<std::size_t>(count, begin + piece); ++i)
      values[i] = static_cast<std::int32_t>(random());
  }
  return values;
}

/// What the aggregator sends in answer to one packet.
struct Answer {
  int rank = 0;  // SlotServer::kToAll: to every rank
  std::vector<std::byte> packet;
};

struct RackSetting {
  int workers = 2;
  std::uint32_t slots = 8, piece = 16;
  std::size_t count = 16 * 100 + 3;
  double density = 1;
  int tensors = 1;
  verbs::SimulatedLink link{};
  /// The aggregator's link; by default a switch's, which is at the other end of all links at once.
  std::optional<verbs::SimulatedLink> aggregator{};
  std::vector<Time> late{};  // when each rank begins; those without an entry begin at once
  unsigned seed = 1;
  bool zeros = false;  // Pool::zeros
  /// Is told of each packet that the aggregator gets, from which rank, and how it answers.
  std::function<void(int, std::span<const std::byte>, const std::vector<Answer>&)> watch{};
};

/// All ranks and one aggregator, which exchange packets over a simulated network until all are done.
class Rack {
 public:
  explicit Rack(const RackSetting& setting) : setting_(setting), network_(setting.seed) {
    const Pool pool{setting.workers, setting.slots, setting.piece, kJob, setting.zeros};
    server_ = std::make_unique<SlotServer>(pool);
    for (int i = 0; i < setting.workers; ++i) ports_.push_back(network_.open(setting.link));
    verbs::SimulatedLink inside = setting.link;
    inside.bits_per_second = 0;
    ports_.push_back(network_.open(setting.aggregator.value_or(inside)));
    std::vector<std::string> addresses;
    for (const auto& port : ports_) addresses.push_back(port->address());
    for (const auto& port : ports_) port->connect(addresses);
    for (int r = 0; r < setting.workers; ++r) {
      workers_.push_back(std::make_unique<SlotWorker>(pool, r, static_cast<std::size_t>(setting.tensors)));
      for (int t = 0; t < setting.tensors; ++t) {
        const unsigned seed = setting.seed * 1000 + static_cast<unsigned>(t * setting.workers + r);
        tensors_.push_back(
            std::make_unique<MemoryTensor>(random_values(setting.count, setting.piece, setting.density, seed),
                                           setting.piece, setting.slots, static_cast<std::uint32_t>(t)));
      }
    }
  }

  /// Returns false if they are not done at `limit`, or if any has failed.
  bool run(Time limit) {
    begun_.assign(workers_.size(), false);
    while (network_.now() < limit) {
      bool done = true;
      for (std::size_t r = 0; r < workers_.size(); ++r) {
        if (!begun_[r] && (r >= setting_.late.size() || network_.now() >= setting_.late[r])) begin(r);
        drive_worker(r);
        done &= begun_[r] && workers_[r]->idle();
        if (!workers_[r]->failure().empty()) return failure_ = workers_[r]->failure(), false;
      }
      drive_server();
      if (!server_->failure().empty()) return failure_ = server_->failure(), false;
      if (done) return true;
      const Time tick = network_.now() + std::chrono::microseconds(50);
      network_.advance(std::min(tick, std::max(network_.now(), network_.next().value_or(tick))));
    }
    return false;
  }

  /// Why run() came to no end; empty if there was too little time.
  const std::string& failure() const { return failure_; }
  MemoryTensor& tensor(int rank, int number) {
    return *tensors_[static_cast<std::size_t>(rank * setting_.tensors + number)];
  }
  std::vector<std::int32_t> sum(int number) {
    std::vector<std::int32_t> sum(setting_.count);
    for (int r = 0; r < setting_.workers; ++r) {
      for (std::size_t i = 0; i < sum.size(); ++i) {
        sum[i] = static_cast<std::int32_t>(static_cast<std::uint32_t>(sum[i]) +
                                           static_cast<std::uint32_t>(tensor(r, number).input[i]));
      }
    }
    return sum;
  }
  /// Compares every element of every tensor on every rank with the plain sum.
  void expect_sums() {
    for (int t = 0; t < setting_.tensors; ++t) {
      const auto expected = sum(t);
      for (int r = 0; r < setting_.workers; ++r) {
        EXPECT_EQ(tensor(r, t).output, expected) << "tensor " << t << " on rank " << r;
        EXPECT_TRUE(tensor(r, t).done());
      }
    }
  }
  SlotServer& server() { return *server_; }
  SlotWorker& worker(int rank) { return *workers_[static_cast<std::size_t>(rank)]; }
  verbs::SimulatedNetwork& network() { return network_; }

 private:
  void begin(std::size_t r) {
    begun_[r] = true;
    for (int t = 0; t < setting_.tensors; ++t) workers_[r]->submit(tensor(static_cast<int>(r), t));
  }
  void drive_worker(std::size_t r) {
    std::array<verbs::ArrivedDatagram, 16> arrived;
    while (const std::size_t n = ports_[r]->receive(arrived)) {
      for (std::size_t i = 0; i < n; ++i) workers_[r]->receive(arrived[i].bytes, network_.now());
    }
    workers_[r]->advance(network_.now());
    std::vector<std::byte> packet(sizeof(Header) + 4 * setting_.piece);
    while (const std::size_t bytes = workers_[r]->next_packet(packet, network_.now())) {
      const verbs::Datagram d{static_cast<verbs::PeerId>(workers_.size()), std::span(packet).first(bytes)};
      ports_[r]->send({&d, 1});
    }
  }
  void drive_server() {
    std::array<verbs::ArrivedDatagram, 16> arrived;
    while (const std::size_t n = ports_.back()->receive(arrived)) {
      for (std::size_t i = 0; i < n; ++i) {
        const auto rank = static_cast<int>(arrived[i].peer);
        server_->receive(rank, arrived[i].bytes);
        const auto answers = answer();
        if (setting_.watch) setting_.watch(rank, arrived[i].bytes, answers);
      }
    }
  }
  std::vector<Answer> answer() {
    std::vector<Answer> answers;
    while (const auto out = server_->front()) {
      for (verbs::PeerId r = 0; r < workers_.size(); ++r) {
        if (out->rank != SlotServer::kToAll && out->rank != static_cast<int>(r)) continue;
        const verbs::Datagram d{r, out->packet};
        ports_.back()->send({&d, 1});
      }
      answers.push_back({out->rank, {out->packet.begin(), out->packet.end()}});
      server_->pop();
    }
    return answers;
  }

  const RackSetting setting_;
  verbs::SimulatedNetwork network_;
  std::vector<std::unique_ptr<verbs::DatagramPort>> ports_;  // of the ranks, then of the aggregator
  std::unique_ptr<SlotServer> server_;
  std::vector<std::unique_ptr<SlotWorker>> workers_;
  std::vector<std::unique_ptr<MemoryTensor>> tensors_;
  std::vector<bool> begun_;
  std::string failure_;
};

}  // namespace nzcl::engine::slot_pool::test
