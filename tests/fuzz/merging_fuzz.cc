// Feeds any bytes as partial sums to one of four ranks, which has operations of its own under way.
#include "runtime/exchange/merging/merging_exchange.h"
#include "tests/engine/partial_sum.h"
#include "tests/fuzz/fuzz.h"

namespace nzcl::test {
namespace {

using wire::Direction;
using wire::Priority;

/// Precedes the bytes of each message in the input.
struct Step {
  std::uint8_t rank = 0, reserved = 0;
  std::uint16_t bytes = 0;
};

std::string message(std::uint8_t from, const PartialSum& sum) {
  const Bytes bytes = sum.bytes();
  std::string text;
  append(text, Step{from, 0, static_cast<std::uint16_t>(bytes.size())});
  return text + std::string(bytes.begin(), bytes.end());
}

void run(FuzzInput input) {
  HandFed fed(
      {.self = 0, .workers = 4, .dedicated = 0, .slot_bytes = 2048, .tile_block_bytes = 64, .merging = true});
  engine::MergingExchange exchange(fed.context());
  std::vector<std::unique_ptr<HandMade>> operations;
  for (std::uint64_t epoch = 0; epoch < 2; ++epoch) {
    operations.push_back(
        std::make_unique<HandMade>(fed, epoch, std::vector<float>(20, 1.0f), merging_record()));
    exchange.submit(operations.back()->operation);
  }
  const auto step = [&] {
    while (!fed.context().failure && exchange.step()) fed.drop_sent();
  };
  step();
  while (!input.empty() && !fed.context().failure) {
    const auto next = input.value<Step>();
    fed.feed_bytes(1 + next.rank % 2, Direction::up, Priority::merging, input.bytes(next.bytes));
    step();
  }
  static_cast<void>(exchange.waiting_for());
}

}  // namespace

std::vector<std::string> fuzz_seeds() {
  const PartialSum first(0, {1, 4}, {1, 2}), second(1, {19}, {3}), nothing(0, {}, {});
  PartialSum bitmap(0, {0x7, 0, 0, 0}, {1, 2, 3}), all(0, {}, std::vector<float>(20, 1.0f));
  bitmap.descriptor.index = wire::IndexCode::bitmap;
  all.descriptor.index = wire::IndexCode::all;
  return {message(0, first) + message(1, first) + message(0, second) + message(1, second),
          message(1, first) + message(1, second) + message(0, first),  // in another order
          message(0, PartialSum::refusal(0, 1, "no")) + message(1, first),
          message(0, nothing) + message(1, bitmap),
          message(0, all),
          message(0, second)};
}

}  // namespace nzcl::test

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  nzcl::test::run({data, size});
  return 0;
}
