// Feeds any bytes as batches to one of four ranks, which has operations of its own under way.
#include "runtime/exchange/doubling/doubling_exchange.h"
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

wire::OperationRecord record() {
  wire::OperationRecord record = HandMade::record();
  record.algorithm = wire::Algorithm::doubling;
  return record;
}

/// A batch of contributions to 20 floats in blocks of 4, each of which has two blocks or is refused.
std::string batch(std::uint8_t from, std::uint64_t sequence, std::uint16_t entries, bool refused = false,
                  std::uint64_t bitmap = 0b00011) {
  std::string payload;
  for (std::uint16_t i = 0; i < entries; ++i) {
    append(payload, wire::BatchEntry{32, static_cast<std::uint16_t>(refused ? 1 : 0), 0});
    append(payload, refused ? std::uint64_t{0} : bitmap);
    for (int v = 0; v < 8; ++v) append(payload, 1.0f);
  }
  wire::Header header{.flags = wire::kHasBitmap | wire::kBatch, .epoch = sequence, .sequence = sequence};
  header.bitmap_bytes = 8;
  header.payload_bytes = static_cast<std::uint32_t>(payload.size());
  header.entries = entries;
  std::string body;
  append(body, header);
  append(body, record());
  body += payload;
  std::string text;
  append(text, Step{from, 0, static_cast<std::uint16_t>(body.size())});
  return text + body;
}

void run(FuzzInput input) {
  HandFed fed({.self = 0, .workers = 4, .dedicated = 0, .doubling = true});
  engine::DoublingExchange exchange(fed.context());
  std::vector<std::unique_ptr<HandMade>> operations;
  for (std::uint64_t epoch = 0; epoch < 2; ++epoch) {
    operations.push_back(std::make_unique<HandMade>(fed, epoch, std::vector<float>(20, 1.0f), record()));
    exchange.submit(operations.back()->operation);
  }
  const auto step = [&] {
    while (!fed.context().failure && exchange.step()) fed.drop_sent();
  };
  step();
  while (!input.empty() && !fed.context().failure) {
    const auto next = input.value<Step>();
    const int from = next.rank % 2 == 0 ? 3 : 2;  // the ranks that send to rank 0
    fed.feed_bytes(from, Direction::up, Priority::doubling, input.bytes(next.bytes));
    step();
  }
  static_cast<void>(exchange.waiting_for());
}

}  // namespace

std::vector<std::string> fuzz_seeds() {
  return {batch(0, 0, 1) + batch(1, 0, 2) + batch(0, 1, 1) + batch(1, 1, 2),
          batch(1, 0, 2) + batch(0, 1, 1) + batch(0, 0, 1),  // in another order
          batch(0, 0, 1, true) + batch(1, 0, 2),             // rank 3 refuses
          batch(0, 0, 1, false, 1u << 5),                    // a bit behind the last block
          batch(0, 0, 2),
          batch(0, 20, 1)};
}

}  // namespace nzcl::test

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  nzcl::test::run({data, size});
  return 0;
}
