// Feeds any bytes as partial sums to one of four ranks, which has operations of its own under way.
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

}  // namespace

std::vector<std::string> fuzz_seeds() {
  const PartialSum first(0, {1, 4}, {1, 2}), second(1, {19}, {3}), nothing(0, {}, {});
  PartialSum bitmap(0, {0x7, 0, 0, 0}, {1, 2, 3}), all(0, {}, std::vector<float>(20, 1.0f));
  PartialSum blocks(0, {0, 6}, {1, 2, 3, 4, 5});
  blocks.record = merging_record(3);
  bitmap.descriptor.index = wire::IndexCode::bitmap;
  all.descriptor.index = wire::IndexCode::all;
  return {message(0, first) + message(1, first) + message(0, second) + message(1, second),
          message(1, first) + message(1, second) + message(0, first),  // in another order
          message(0, PartialSum::refusal(0, 1, "no")) + message(1, first),
          message(0, nothing) + message(1, bitmap),
          message(0, all),
          message(0, second),
          message(0, blocks) + message(1, blocks)};
}

}  // namespace nzcl::test

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  for (const std::uint64_t block : {1, 3}) nzcl::test::run({data, size}, block);
  return 0;
}
