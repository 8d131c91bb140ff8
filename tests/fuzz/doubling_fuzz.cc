// Feeds any bytes as messages of doubling to one of four ranks, which has operations of its own under way.
#include "runtime/exchange/gather/gather_exchange.h"
#include "tests/fuzz/feed_exchange.h"

namespace nzcl::test {
namespace {

wire::OperationRecord record() {
  wire::OperationRecord record = HandMade::record();
  record.algorithm = wire::Algorithm::doubling;
  return record;
}

/// A contribution to 20 floats in blocks of 4, and a batch of as many of them as are passed on. Each has two
/// blocks or is refused.
std::string message(std::uint8_t from, std::uint64_t sequence, std::uint16_t passed_on, bool refused = false,
                    std::uint64_t bitmap = 0b00011) {
  wire::Header header{.flags = wire::kHasBitmap, .epoch = sequence, .sequence = sequence};
  if (refused) header.flags |= wire::kRefused, header.refusal_code = 1;
  if (passed_on > 0) header.flags |= wire::kMore;
  header.bitmap_bytes = 8;
  header.payload_bytes = 32;
  std::string body;
  const auto append_blocks = [&] {
    append(body, refused ? std::uint64_t{0} : bitmap);
    for (int v = 0; v < 8; ++v) append(body, 1.0f);
  };
  append(body, header);
  append(body, record());
  append_blocks();
  if (passed_on == 0) return prefixed(from, body);
  wire::Header batch{.flags = wire::kBatch, .epoch = sequence, .sequence = sequence};
  batch.payload_bytes = passed_on * static_cast<std::uint32_t>(wire::entry_bytes(8, 32));
  batch.entries = passed_on;
  append(body, batch);
  for (std::uint16_t i = 0; i < passed_on; ++i) {
    append(body, wire::BatchEntry{32, static_cast<std::uint16_t>(refused ? 1 : 0), 0});
    append_blocks();
  }
  return prefixed(from, body);
}

void run(FuzzInput input) {
  feed_exchange<engine::GatherExchange>(input, {.self = 0, .workers = 4, .dedicated = 0, .doubling = true},
                                        wire::Priority::doubling, record(), {3, 2}, wire::Priority::doubling,
                                        engine::doubling_schedule(4));
}

}  // namespace

std::vector<std::string> fuzz_seeds() {
  return {message(0, 0, 0) + message(1, 0, 1) + message(0, 1, 0) + message(1, 1, 1),
          message(1, 0, 1) + message(0, 1, 0),                  // the second without the first
          message(1, 0, 1) + message(0, 0, 0),                  // in another order
          message(0, 0, 0, true) + message(1, 0, 1),            // rank 3 refuses
          message(0, 0, 0) + message(1, 0, 1, true),            // rank 2 does, and what it passes on
          message(0, 0, 0) + message(1, 0, 1, false, 1u << 5),  // bits behind the last block
          message(0, 0, 1),
          message(0, 20, 0)};
}

}  // namespace nzcl::test

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  nzcl::test::run({data, size});
  return 0;
}
