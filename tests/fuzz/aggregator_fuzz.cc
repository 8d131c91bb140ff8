// Feeds any bytes as contributions to an aggregator of two ranks, once to a dedicated one and once to one
// beside a worker.
#include "runtime/exchange/push/aggregator.h"
#include "runtime/exchange/push/worker.h"
#include "tests/engine/hand_fed.h"
#include "tests/fuzz/fuzz.h"

namespace nzcl::test {
namespace {

using wire::Direction;
using wire::Priority;

/// Precedes the bytes of each message in the input.
struct Step {
  std::uint8_t rank = 0, priority = 0;
  std::uint16_t bytes = 0;
};

std::string message(std::uint8_t rank, Priority c, std::uint64_t sequence, std::vector<std::uint64_t> bitmap,
                    std::size_t values, std::uint64_t count, std::uint16_t flags = wire::kHasBitmap) {
  wire::Header header{.flags = flags, .epoch = sequence, .sequence = sequence};
  header.refusal_code = 1;
  header.bitmap_bytes = static_cast<std::uint32_t>(bitmap.size() * 8);
  header.payload_bytes = static_cast<std::uint32_t>(values * 4);
  std::string body;
  append(body, header);
  append(body, HandMade::record(count));
  for (const std::uint64_t word : bitmap) append(body, word);
  for (std::size_t i = 0; i < values; ++i) append(body, 1.0f);
  std::string text;
  append(text, Step{rank, static_cast<std::uint8_t>(c), static_cast<std::uint16_t>(body.size())});
  return text + body;
}

wire::OperationRecord record_of(std::uint64_t count, std::uint64_t block) {
  wire::OperationRecord record = HandMade::record(count);
  record.block_elems = block;
  return record;
}

/// Appends one tile whose values are as they are: ones.
void append_tile(std::string& payload, std::uint32_t count, wire::IndexCode code,
                 const std::vector<std::uint16_t>& index) {
  append(payload, wire::TileDescriptor{count, code, wire::ValueCode::as_is}.encode());
  for (std::uint32_t i = 0; i < count; ++i) append(payload, 1.0f);
  for (const std::uint16_t v : index) append(payload, v);
  payload.resize((payload.size() + 3) / 4 * 4);
}

/// One message with tiles of every code, for a tensor of 1024 elements in tiles of 256. Units are single
/// elements.
std::string tile_message(std::uint8_t rank, wire::ValueRule rule = wire::ValueRule::as_is) {
  using wire::IndexCode;
  wire::Header header{.flags = wire::kHasBitmap | wire::kTiles};
  header.tiles = 4;
  std::string payload;
  if (rule == wire::ValueRule::as_is) {
    append_tile(payload, 2, IndexCode::offsets, {3, 60});
    append_tile(payload, 2, IndexCode::gaps, {2, 0x0503});
  } else {
    // Two values of code signs and two of code levels, each with the offsets 3 and 60.
    append(payload, wire::TileDescriptor{2, IndexCode::offsets, wire::ValueCode::signs, 0}.encode());
    for (const std::uint32_t word : {0x3f800000u, 0x3c000302u, 0u}) append(payload, word);
    append(payload, wire::TileDescriptor{2, IndexCode::offsets, wire::ValueCode::levels, 4}.encode());
    for (const std::uint32_t word : {15u | 1u << 16, 0x40000000u, 0x3c00030eu, 0u}) append(payload, word);
  }
  append_tile(payload, 3, IndexCode::runs, {4, 7, 2});
  append_tile(payload, 1, IndexCode::bitmap, {1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0});
  header.payload_bytes = static_cast<std::uint32_t>(payload.size());
  std::string body;
  append(body, header);
  wire::OperationRecord record = record_of(1024, 1);
  record.value_rule = rule;
  append(body, record);
  body += payload;
  std::string text;
  append(text,
         Step{rank, static_cast<std::uint8_t>(Priority::bulk), static_cast<std::uint16_t>(body.size())});
  return text + body;
}

/// The same tensor in two lists: of one tile, and of three.
std::string list_message(std::uint8_t rank) {
  wire::Header header{.flags = wire::kHasBitmap | wire::kTiles};
  header.tiles = 4;
  std::string payload;
  for (const std::uint32_t tiles : {1u, 3u}) {
    append(payload,
           wire::TileDescriptor{.count = tiles - 1, .parameter = wire::TileDescriptor::kListed}.encode());
    append(payload, tiles);  // as many elements
    for (std::uint32_t i = 0; i < tiles; ++i) append(payload, 1.0f);
    for (std::uint32_t i = 0; i < tiles; ++i) append(payload, 255 * i + rank);
  }
  header.payload_bytes = static_cast<std::uint32_t>(payload.size());
  std::string body;
  append(body, header);
  append(body, record_of(1024, 1));
  body += payload;
  std::string text;
  append(text,
         Step{rank, static_cast<std::uint8_t>(Priority::bulk), static_cast<std::uint16_t>(body.size())});
  return text + body;
}

/// The same for blocks of 4, and one element less, so that the last block has 3.
std::string block_tile_message(std::uint8_t rank) {
  using wire::IndexCode;
  wire::Header header{.flags = wire::kHasBitmap | wire::kTiles};
  header.tiles = 4;
  std::string payload;
  append_tile(payload, 8, IndexCode::offsets, {3, 60});
  append_tile(payload, 8, IndexCode::gaps, {2, 0x0503});
  append_tile(payload, 12, IndexCode::runs, {4, 7, 2});
  append_tile(payload, 7, IndexCode::bitmap, {1, 0, 0, 0x8000});
  header.payload_bytes = static_cast<std::uint32_t>(payload.size());
  std::string body;
  append(body, header);
  append(body, record_of(1023, 4));
  body += payload;
  std::string text;
  append(text,
         Step{rank, static_cast<std::uint8_t>(Priority::bulk), static_cast<std::uint16_t>(body.size())});
  return text + body;
}

/// `block`: of this rank's own operation at bulk priority, if its tensor is tiled.
void run(FuzzInput input, bool colocated, std::uint64_t block) {
  const bool tiled = block > 0;
  HandFed fed({.self = colocated ? 0 : 2,
               .dedicated = colocated ? 0 : 1,
               .slot_bytes = tiled ? 2048u : 1024u,
               .direct_bytes = 32,
               .tile_block_bytes = tiled ? 64u : 0u});
  std::vector<std::unique_ptr<engine::Worker>> workers;
  std::vector<std::unique_ptr<engine::Aggregator>> aggregators;
  std::vector<std::unique_ptr<HandMade>> operations;
  for (const Priority c : {Priority::bulk, Priority::express}) {
    aggregators.push_back(std::make_unique<engine::Aggregator>(fed.context(), c));
    if (!colocated) continue;
    workers.push_back(std::make_unique<engine::Worker>(fed.context(), c));
    workers.back()->connect(aggregators.back().get());
    aggregators.back()->connect(workers.back().get());
    const bool bulk = c == Priority::bulk;
    operations.push_back(std::make_unique<HandMade>(fed, 0,
                                                    std::vector<float>(!bulk        ? 20
                                                                       : block == 4 ? 1023
                                                                                    : 1024,
                                                                       1.0f),
                                                    record_of(0, tiled && bulk ? block : 4)));
    workers.back()->submit(&operations.back()->operation);
  }
  const auto step = [&] {
    for (bool any = true; any && !fed.context().failure;) {
      any = false;
      for (auto& worker : workers) any |= worker->step();
      for (auto& aggregator : aggregators) any |= aggregator->step();
      fed.drop_sent();
    }
  };
  step();
  while (!input.empty() && !fed.context().failure) {
    const auto next = input.value<Step>();
    fed.feed_bytes(colocated ? 1 : next.rank % 2, Direction::up, static_cast<Priority>(next.priority % 2),
                   input.bytes(next.bytes));
    step();
  }
  for (const auto& aggregator : aggregators) static_cast<void>(aggregator->waiting_for());
  for (const auto& worker : workers) static_cast<void>(worker->waiting_for());
}

}  // namespace

std::vector<std::string> fuzz_seeds() {
  const auto small = [](std::uint8_t rank, std::uint64_t sequence) {
    return message(rank, Priority::express, sequence, {0b00011}, 8, 20);
  };
  std::vector<std::uint64_t> dense(4, ~std::uint64_t{0});
  return {
      small(0, 0) + small(1, 0) + small(0, 1) + small(1, 1),
      message(0, Priority::bulk, 0, dense, 100, 1024) + message(1, Priority::bulk, 0, dense, 100, 1024),
      // Rank 1 refuses the first operation, of which rank 0 has sent its part, and takes part in the next.
      small(0, 0) + message(1, Priority::express, 0, {0}, 5, 20, wire::kHasBitmap | wire::kRefused) +
          small(0, 1) + small(1, 1),
      message(1, Priority::express, 0, {1u << 5}, 4, 20),  // a bit behind the last block
      tile_message(0) + tile_message(1), list_message(0) + list_message(1), list_message(0) + tile_message(1),
      block_tile_message(0) + block_tile_message(1),
      tile_message(0, wire::ValueRule::coded) + tile_message(1, wire::ValueRule::coded),
      // The tensor's size in bytes wraps to zero.
      message(1, Priority::express, 0, {0}, 0, std::uint64_t{1} << 62)};
}

}  // namespace nzcl::test

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  for (const bool colocated : {false, true}) {
    for (const std::uint64_t block : {0, 1, 4}) nzcl::test::run({data, size}, colocated, block);
  }
  return 0;
}
