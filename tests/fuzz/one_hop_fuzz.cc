// Feeds any bytes as contributions to one of three ranks that exchange in one hop.
#include "runtime/exchange/gather/gather_exchange.h"
#include "tests/fuzz/feed_exchange.h"

namespace nzcl::test {
namespace {

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
  return prefixed(from, body);
}

void run(FuzzInput input) {
  feed_exchange<engine::GatherExchange>(input, {.self = 0, .workers = 3, .dedicated = 0, .one_hop = true},
                                        wire::Priority::express, HandMade::record(), {1, 2},
                                        wire::Priority::express, engine::one_hop_schedule(3));
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
