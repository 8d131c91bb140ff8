// Feeds any bytes as batches to one of four ranks, which has operations of its own under way.
#include "runtime/exchange/doubling/doubling_exchange.h"
#include "tests/fuzz/feed_exchange.h"

namespace nzcl::test {
namespace {

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
  return prefixed(from, body);
}

void run(FuzzInput input) {
  feed_exchange<engine::DoublingExchange>(input, {.self = 0, .workers = 4, .dedicated = 0, .doubling = true},
                                          wire::Priority::doubling, record(), {3, 2});
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
