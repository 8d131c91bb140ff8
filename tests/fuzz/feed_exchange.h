// The input of the fuzz programs of exchanges between ranks alone, and the loop that feeds it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/engine/hand_fed.h"
#include "tests/fuzz/fuzz.h"

namespace nzcl::test {

/// Precedes the bytes of each message in the input.
struct MessagePrefix {
  std::uint8_t from = 0, reserved = 0;  // `from` picks one of two senders
  std::uint16_t bytes = 0;
};

inline std::string prefixed(std::uint8_t from, const std::string& message) {
  std::string text;
  append(text, MessagePrefix{from, 0, static_cast<std::uint16_t>(message.size())});
  return text + message;
}

/// The tensors of the operations that are under way.
struct FedTensors {
  std::size_t count = 20;  // ones, of which this rank contributes all
  /// Changes an operation before it begins, if it is set.
  void (*prepare)(engine::Operation&) = nullptr;
};

/// Runs rank 0 with two operations of floats under way, and feeds it the messages of the input, which come
/// from two other ranks. The exchange is made of the lane's context and `more`.
template <typename Exchange, typename... More>
void feed_exchange_of(const FedTensors& tensors, FuzzInput input, const HandFed::Setup& setup,
                      wire::Priority priority, const wire::OperationRecord& record,
                      const std::array<int, 2>& senders, const More&... more) {
  HandFed fed(setup);
  Exchange exchange(fed.context(), more...);
  std::vector<std::unique_ptr<HandMade>> operations;
  for (std::uint64_t epoch = 0; epoch < 2; ++epoch) {
    operations.push_back(
        std::make_unique<HandMade>(fed, epoch, std::vector<float>(tensors.count, 1.0f), record));
    if (tensors.prepare != nullptr) tensors.prepare(operations.back()->operation);
    exchange.submit(operations.back()->operation);
  }
  const auto step = [&] {
    while (!fed.context().failure && exchange.step()) fed.drop_sent();
  };
  step();
  while (!input.empty() && !fed.context().failure) {
    const auto next = input.value<MessagePrefix>();
    fed.feed_bytes(senders[next.from % 2], wire::Direction::up, priority, input.bytes(next.bytes));
    step();
  }
  static_cast<void>(exchange.waiting_for());
}
/// The same with tensors of 20 elements.
template <typename Exchange, typename... More>
void feed_exchange(FuzzInput input, const HandFed::Setup& setup, wire::Priority priority,
                   const wire::OperationRecord& record, const std::array<int, 2>& senders,
                   const More&... more) {
  feed_exchange_of<Exchange>({}, input, setup, priority, record, senders, more...);
}

}  // namespace nzcl::test
