// Feeds any bytes as partial sums to one of four ranks, and to one of two, which may be told lists. It has
// operations of its own under way.
#include "runtime/exchange/merging/merging_exchange.h"
#include "tests/engine/partial_sum.h"
#include "tests/fuzz/feed_exchange.h"

namespace nzcl::test {
namespace {

std::string message(std::uint8_t from, const PartialSum& sum) {
  const Bytes bytes = sum.bytes();
  return prefixed(from, {bytes.begin(), bytes.end()});
}

/// `block`: of the tensor of 20 elements. Of blocks of 3 the last one has 2 elements.
void run(FuzzInput input, std::uint64_t block) {
  feed_exchange<engine::MergingExchange>(
      input,
      {.self = 0, .workers = 4, .dedicated = 0, .slot_bytes = 2048, .tile_block_bytes = 64, .merging = true},
      wire::Priority::merging, merging_record(block), {1, 2});
}

/// The number of elements of tensors of several tiles, whose last block of 3 has 2 elements.
constexpr std::size_t kTiled = 1001;
/// Of the tensor's blocks this rank has a few in tiles of their own, as a list.
void set_few(engine::Operation& op) {
  static const std::vector<float> values(6, 2.0f);
  const std::vector<std::int64_t> blocks{7, 300};
  engine::ElementStream stream;
  stream.values = std::as_bytes(std::span(values)).data();
  stream.units = engine::StreamUnits(blocks.size(), op.layout);
  stream.units.append(std::span(blocks));
  stream.units.end();
  op.set_input_stream(std::move(stream));
}
void run_lists(FuzzInput input, std::uint64_t block) {
  feed_exchange_of<engine::MergingExchange>(
      {.count = kTiled, .prepare = set_few}, input,
      {.self = 0, .workers = 2, .dedicated = 0, .slot_bytes = 2048, .tile_block_bytes = 64, .merging = true},
      wire::Priority::merging, merging_record(block), {1, 1});
}

}  // namespace

std::vector<std::string> fuzz_seeds() {
  const PartialSum first(0, {1, 4}, {1, 2}), second(1, {19}, {3}), nothing(0, {}, {});
  PartialSum bitmap(0, {0x7, 0, 0, 0}, {1, 2, 3}), all(0, {}, std::vector<float>(20, 1.0f));
  PartialSum blocks(0, {0, 6}, {1, 2, 3, 4, 5});
  blocks.record = merging_record(3);
  // Of the tensor of several tiles: two lists, one behind the other, and one of all tiles.
  PartialSum lists = PartialSum::list(0, kTiled, 2, {1, 300}, {1, 2}),
             short_list = PartialSum::list(0, kTiled, 2, {0, 400}, {3, 4}),
             whole = PartialSum::list(1, kTiled, 4, {1, 7, 900}, {1, 2, 3});
  short_list.header.flags = wire::kTiles, short_list.header.stream_offset = 2;
  bitmap.descriptor.index = wire::IndexCode::bitmap;
  all.descriptor.index = wire::IndexCode::all;
  return {message(0, first) + message(1, first) + message(0, second) + message(1, second),
          message(1, first) + message(1, second) + message(0, first),  // in another order
          message(0, PartialSum::refusal(0, 1, "no")) + message(1, first),
          message(0, nothing) + message(1, bitmap),
          message(0, all),
          message(0, second),
          message(0, blocks) + message(1, blocks),
          message(0, lists) + message(0, short_list) + message(0, whole)};
}

}  // namespace nzcl::test

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  for (const std::uint64_t block : {1, 3}) {
    nzcl::test::run({data, size}, block);
    nzcl::test::run_lists({data, size}, block);
  }
  return 0;
}
