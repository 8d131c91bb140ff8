// Feeds any bytes as results, and announcements of direct writes, to workers with an operation of each
// priority under way.
#include "runtime/exchange/push/worker.h"
#include "tests/engine/hand_fed.h"
#include "tests/fuzz/fuzz.h"

namespace nzcl::test {
namespace {

using wire::Direction;
using wire::Priority;

constexpr int kAggregator = 2;
constexpr std::uint8_t kDirectWrite = 2;

/// Precedes the bytes of each message in the input.
struct Step {
  std::uint8_t what = 0;  // the priority of a message, or kDirectWrite
  std::uint8_t reserved = 0;
  std::uint16_t value = 0;  // bytes of the message, or the direct write's sequence
};

std::string message(Priority c, std::uint16_t flags, std::vector<std::uint64_t> bitmap, std::size_t values,
                    std::uint32_t direct_writes = 0) {
  wire::Header header{.flags = flags};
  header.bitmap_bytes = static_cast<std::uint32_t>(bitmap.size() * 8);
  header.payload_bytes = static_cast<std::uint32_t>(values * 4);
  header.direct_writes = direct_writes;
  header.refusal_code = 1;
  std::string body;
  append(body, header);
  for (const std::uint64_t word : bitmap) append(body, word);
  for (std::size_t i = 0; i < values; ++i) append(body, 1.0f);
  std::string text;
  append(text, Step{static_cast<std::uint8_t>(c), 0, static_cast<std::uint16_t>(body.size())});
  return text + body;
}

/// A result of two sections of tiles, whose units have `block` elements.
std::string tile_message(std::uint32_t block) {
  std::string text;
  for (const std::uint64_t first : {0, 1}) {
    wire::Header header{.flags = wire::kTiles, .stream_offset = first};
    header.tiles = first == 0 ? 1 : 3;
    std::string payload;
    for (std::uint32_t i = 0; i < header.tiles; ++i) {
      const bool last = first + i == 3;  // of 1021 elements, so that its last block of 4 has one
      const std::uint32_t count = 2 * block - (last && block == 4 ? 3 : 0), at = last ? 63 : 60;
      append(payload, wire::TileDescriptor{count, wire::IndexCode::offsets, wire::ValueCode::as_is}.encode());
      for (std::uint32_t v = 0; v < count; ++v) append(payload, 1.0f);
      append(payload, std::uint32_t{3 | at << 16});
    }
    header.payload_bytes = static_cast<std::uint32_t>(payload.size());
    append(text, Step{static_cast<std::uint8_t>(Priority::bulk), 0,
                      static_cast<std::uint16_t>(sizeof header + payload.size())});
    append(text, header);
    text += payload;
  }
  return text;
}

/// A result in one list of all four tiles.
std::string list_message() {
  wire::Header header{.flags = wire::kTiles};
  header.tiles = 4;
  std::string payload;
  append(payload, wire::TileDescriptor{.count = 3, .parameter = wire::TileDescriptor::kListed}.encode());
  append(payload, std::uint32_t{3});
  for (int i = 0; i < 3; ++i) append(payload, 1.0f);
  for (const std::uint32_t offset : {3u, 256u, 1020u}) append(payload, offset);
  header.payload_bytes = static_cast<std::uint32_t>(payload.size());
  std::string text;
  append(text, Step{static_cast<std::uint8_t>(Priority::bulk), 0,
                    static_cast<std::uint16_t>(sizeof header + payload.size())});
  append(text, header);
  return text + payload;
}

/// `block`: of the operation at bulk priority, if its tensor is tiled.
void run(FuzzInput input, std::uint64_t block) {
  const bool tiled = block > 0;
  HandFed fed({.self = 0, .slot_bytes = tiled ? 2048u : 1024u, .tile_block_bytes = tiled ? 64u : 0u});
  std::vector<std::unique_ptr<engine::Worker>> workers;
  std::vector<std::unique_ptr<HandMade>> operations;
  for (const Priority c : {Priority::bulk, Priority::express}) {
    workers.push_back(std::make_unique<engine::Worker>(fed.context(), c));
    wire::OperationRecord record = HandMade::record();
    if (tiled && c == Priority::bulk) record.block_elems = block;
    operations.push_back(std::make_unique<HandMade>(
        fed, 0, std::vector<float>(c == Priority::bulk ? 1021 : 20, 1.0f), record));
    workers.back()->submit(&operations.back()->operation);
  }
  const auto step = [&] {
    for (auto& worker : workers) {
      while (!fed.context().failure && worker->step()) fed.drop_sent();
    }
  };
  step();
  while (!input.empty() && !fed.context().failure) {
    const auto next = input.value<Step>();
    if (next.what % 3 == kDirectWrite) {
      workers[next.reserved % 2]->on_direct(kAggregator, next.value);
    } else {
      fed.feed_bytes(kAggregator, Direction::down, static_cast<Priority>(next.what % 3),
                     input.bytes(next.value));
    }
    step();
  }
  for (const auto& worker : workers) static_cast<void>(worker->waiting_for());
}

}  // namespace

std::vector<std::string> fuzz_seeds() {
  constexpr std::uint16_t kUnion = wire::kHasBitmap;
  std::string direct;
  append(direct, Step{kDirectWrite, 1, 0});
  const std::vector<std::uint64_t> dense(4, ~std::uint64_t{0});
  return {message(Priority::express, kUnion, {0b00011}, 8),
          message(Priority::bulk, kUnion, dense, 200) + message(Priority::bulk, 0, {}, 200),
          direct + message(Priority::express, kUnion | wire::kDirect, {0b00011}, 0, 1),
          message(Priority::express, wire::kRefused, {}, 5),
          tile_message(1),
          tile_message(4),
          list_message(),
          message(Priority::express, kUnion, {1u << 5}, 4)};  // a bit behind the last block
}

}  // namespace nzcl::test

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  for (const std::uint64_t block : {0, 1, 4}) nzcl::test::run({data, size}, block);
  return 0;
}
