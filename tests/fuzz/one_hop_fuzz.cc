// Feeds any bytes as contributions to one of three ranks that exchange in one hop.
#include "runtime/exchange/one_hop/one_hop_exchange.h"
#include "tests/engine/hand_fed.h"
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

/// A contribution to 20 floats in blocks of 4, with two blocks unless it is refused.
std::string contribution(std::uint8_t from, std::uint64_t sequence, bool refused = false,
                         std::uint64_t bitmap = 0b00011, std::uint64_t count = 20) {
  wire::Header header{.flags = wire::kHasBitmap, .epoch = sequence, .sequence = sequence};
  if (refused) header.flags |= wire::kRefused, header.refusal_code = 1;
  header.bitmap_bytes = 8;
  header.payload_bytes = 32;
  wire::OperationRecord record = HandMade::record();
  record.count = count;
  std::string body;
  append(body, header);
  append(body, record);
  append(body, refused ? std::uint64_t{0} : bitmap);
  for (int v = 0; v < 8; ++v) append(body, 1.0f);
  std::string text;
  append(text, Step{from, 0, static_cast<std::uint16_t>(body.size())});
  return text + body;
}

void run(FuzzInput input) {
  HandFed fed({.self = 0, .workers = 3, .dedicated = 0, .one_hop = true});
  engine::OneHopExchange exchange(fed.context());
  std::vector<std::unique_ptr<HandMade>> operations;
  for (std::uint64_t epoch = 0; epoch < 2; ++epoch) {
    operations.push_back(std::make_unique<HandMade>(fed, epoch, std::vector<float>(20, 1.0f)));
    exchange.submit(operations.back()->operation);
  }
  const auto step = [&] {
    while (!fed.context().failure && exchange.step()) fed.drop_sent();
  };
  step();
  while (!input.empty() && !fed.context().failure) {
    const auto next = input.value<Step>();
    fed.feed_bytes(1 + next.rank % 2, Direction::up, Priority::express, input.bytes(next.bytes));
    step();
  }
  static_cast<void>(exchange.waiting_for());
}

}  // namespace

std::vector<std::string> fuzz_seeds() {
  return {contribution(0, 0) + contribution(1, 0) + contribution(0, 1) + contribution(1, 1),
          contribution(0, 0) + contribution(0, 1) + contribution(1, 0),
          contribution(0, 0, true) + contribution(1, 0),
          contribution(0, 0, false, 1u << 5) + contribution(1, 0),  // a bit behind the last block
          contribution(0, 0, false, 0b00111) + contribution(1, 0),  // and less data than it says
          contribution(0, 0, false, 0b00011, std::uint64_t{1} << 61),
          contribution(0, 20)};
}

}  // namespace nzcl::test

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  nzcl::test::run({data, size});
  return 0;
}
