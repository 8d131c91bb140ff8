// Feeds any bytes to the parsers of lane addresses, of endpoint addresses, of the private data of rdma_cm,
// and to handshakes of queue pairs.
#include <array>

#include "nzcl/error.h"
#include "runtime/lane/lane.h"
#include "tests/fuzz/fuzz.h"
#include "verbs/cm/greeting.h"
#include "verbs/cma/address.h"
#include "verbs/ibv/address.h"
#include "verbs/ibv/handshake.h"
#include "verbs/loopback/network.h"
#include "verbs/segment/shared_segment.h"
#include "verbs/shm/address.h"
#include "verbs/shm/bounce_ring.h"

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

void connect_lane(const std::string& address) {
  verbs::LoopbackNetwork network;
  const auto device = network.device();
  engine::LaneOptions options{.config = {}, .timeout = {}, .spin = {}, .on_failure = {}};
  options.config.members = {.self = 0, .workers = kPeers, .dedicated = 0};
  options.config.channels = {engine::ChannelConfig{128, 1}, engine::ChannelConfig{128, 1}};
  options.config.set_links({});
  engine::Lane lane(options, device);
  static_cast<void>(lane.address_for(1));
  lane.connect(std::vector<std::string>{"", address}, verbs::Clock::now());
}

/// Both sides of a handshake hear any messages, which the data is cut into.
void hear(std::span<const std::byte> data) {
  using verbs::ibv::Handshake;
  constexpr std::size_t kBytes = sizeof(verbs::ibv::CallMessage);
  std::array<Handshake, 2> sides;
  static_cast<void>(sides[0].call());
  for (; data.size() >= kBytes; data = data.subspan(kBytes)) {
    const auto message = verbs::ibv::CallMessage::read(data.first(kBytes));
    if (!message) continue;
    for (Handshake& side : sides) {
      const bool was_connected = side.state() >= Handshake::State::connected;
      const auto step = side.hear(message->word, message->queue_pair);
      // A queue pair is connected once, and with the number that was heard then.
      if (step.connect && (was_connected || side.theirs() != message->queue_pair)) __builtin_trap();
      if (side.open() && !was_connected && !step.connect) __builtin_trap();
    }
  }
}

}  // namespace

std::vector<std::string> fuzz_seeds() {
  const verbs::cm::Greeting greeting{.from = 1, .to = 0};
  const auto bytes = greeting.bytes();
  const verbs::ibv::EndpointAddress calls{.calls = 17, .mtu = 3};
  const verbs::ibv::CallMessage message{.from = 1, .to = 0, .queue_pair = 18};
  verbs::cma::Address cma;
  cma.start = {.pid = 1, .segment_fd = 3, .event_fd = 4, .entries = 64, .segment_bytes = 0};
  cma.start.segment_bytes =
      verbs::segment::SharedSegment::Layout{.peers = kPeers, .entries = cma.start.entries}.bytes();
  cma.memories = {{.address = 4096, .bytes = 4096, .fd = 5}};
  verbs::shm::Address shm;
  shm.start = {.name = {1, 2}, .token = 3, .nonce = 4, .segment_bytes = 0, .entries = 64};
  shm.start.segment_bytes =
      verbs::segment::SharedSegment::Layout{kPeers, shm.start.entries, verbs::shm::kBounceArea}.bytes();
  shm.memories = {{.address = 4096, .bytes = 4096}};
  std::string lane;
  append(lane, verbs::RemoteMemory{~std::uint64_t{0}, 1});
  return {{bytes.begin(), bytes.end()},
          calls.encode(),
          {reinterpret_cast<const char*>(&message), sizeof message},
          cma.encode(),
          shm.encode(),
          lane + "0",
          lane + "loopback"};
}

}  // namespace nzcl::test

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace nzcl;
  const std::string text(reinterpret_cast<const char*>(data), size);
  static_cast<void>(verbs::cm::Greeting::read({data, size}));
  test::hear({reinterpret_cast<const std::byte*>(data), size});
  test::try_parse([&] { verbs::ibv::EndpointAddress::decode(text); });
  test::try_parse([&] {
    const auto address = verbs::cma::Address::decode(text, test::kPeers);
    if (address.encode() != text) __builtin_trap();
  });
  test::try_parse([&] {
    const auto address = verbs::shm::Address::decode(text, test::kPeers);
    if (address.encode() != text) __builtin_trap();
  });
  test::try_parse([&] { test::connect_lane(text); });
  return 0;
}
