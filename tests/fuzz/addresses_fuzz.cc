// Feeds any bytes to the parsers of lane addresses, of endpoint and port addresses, and of the private data
// of rdma_cm.
#include "nzcl/error.h"
#include "runtime/lane/lane.h"
#include "runtime/switch/port.h"
#include "tests/fuzz/fuzz.h"
#include "verbs/cm/greeting.h"
#include "verbs/cma/address.h"
#include "verbs/cma/shared_segment.h"
#include "verbs/datagram/udp/address.h"
#include "verbs/ibv/queue_pair.h"
#include "verbs/loopback/network.h"

namespace nzcl::test {
namespace {

constexpr std::size_t kPeers = 2;

template <typename Parse>
void try_parse(Parse parse) {
  try {
    parse();
  } catch (const Error&) {
  }
}

/// What was read says the same when it is written.
void read_port(const std::string& text) {
  using engine::slot_pool::PortAddress;
  const auto port = PortAddress::decode(text, "aggregator 0");
  if (PortAddress::decode(port.encode(), "aggregator 0").encode() != port.encode()) __builtin_trap();
}
void read_udp(const std::string& text) {
  if (verbs::udp::parse_address(verbs::udp::parse_address(text).text()).text().empty()) __builtin_trap();
}

void connect_lane(const std::string& address) {
  verbs::LoopbackNetwork network;
  const auto device = network.device();
  engine::LaneOptions options{.config = {}, .timeout = {}, .spin = {}, .on_failure = {}};
  options.config.members = {.self = 0, .workers = kPeers, .dedicated = 0};
  options.config.channels = {engine::ChannelConfig{128, 1}, engine::ChannelConfig{128, 1}};
  engine::Lane lane(options, device);
  static_cast<void>(lane.address_for(1));
  lane.connect(std::vector<std::string>{"", address}, verbs::Clock::now());
}

}  // namespace

std::vector<std::string> fuzz_seeds() {
  const verbs::cm::Greeting greeting{.from = 1, .to = 0};
  const auto bytes = greeting.bytes();
  verbs::ibv::QueuePairAddress queue{.number = 17};
  queue.mtu = 3;
  verbs::cma::Address cma;
  cma.start = {.pid = 1, .segment_fd = 3, .event_fd = 4, .entries = 64, .segment_bytes = 0};
  cma.start.segment_bytes = verbs::cma::SharedSegment::bytes(kPeers, cma.start.entries);
  cma.memories = {{.address = 4096, .bytes = 4096, .fd = 5}};
  std::string lane;
  append(lane, verbs::RemoteMemory{~std::uint64_t{0}, 1});
  const engine::slot_pool::PortAddress port{
      .address = "192.0.2.1:4791", .max_bytes = 1472, .slots = 64, .job = {}, .zeros = true};
  return {{bytes.begin(), bytes.end()},
          queue.encode(),
          cma.encode(),
          lane + "0",
          lane + "loopback",
          port.encode(),
          port.address};
}

}  // namespace nzcl::test

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace nzcl;
  const std::string text(reinterpret_cast<const char*>(data), size);
  static_cast<void>(verbs::cm::Greeting::read({data, size}));
  test::try_parse([&] { verbs::ibv::QueuePairAddress::decode(text); });
  test::try_parse([&] {
    const auto address = verbs::cma::Address::decode(text, test::kPeers);
    if (address.encode() != text) __builtin_trap();
  });
  test::try_parse([&] { test::read_port(text); });
  test::try_parse([&] { test::read_udp(text); });
  test::try_parse([&] { test::connect_lane(text); });
  return 0;
}
