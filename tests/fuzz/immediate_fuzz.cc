// Feeds any immediates to the lane of one of two ranks. The fuzzer acts as the other rank.
#include <cstdlib>

#include "runtime/lane/lane.h"
#include "tests/engine/hand_fed.h"
#include "tests/fuzz/fuzz.h"
#include "verbs/loopback/network.h"

namespace nzcl::test {
namespace {

using wire::Direction;
using wire::Immediate;
using wire::Priority;

engine::LaneOptions options() {
  engine::LaneOptions options{
      .config = {}, .timeout = std::chrono::hours(1), .spin = {}, .on_failure = [](const Failure&) {}};
  options.config.members = {.self = 0, .workers = 2, .dedicated = 0};
  options.config.channels = {engine::ChannelConfig{1024, 4}, engine::ChannelConfig{512, 4},
                             engine::ChannelConfig{2048, 4}};
  options.config.set_links({});
  return options;
}

/// What a lane's address has in front of that of its endpoint: where its memory is, a secret, and an empty
/// address of each exchange.
constexpr std::size_t kBeforeEndpoint =
    sizeof(verbs::RemoteMemory) + sizeof(std::uint64_t) + 1 + wire::kPriorities;

void run(FuzzInput input) {
  verbs::LoopbackNetwork network;
  const auto ours = network.device(), theirs = network.device();
  engine::Lane lane(options(), ours);
  const auto endpoint = theirs->open_endpoint({.self = 1, .peers = 2, .arrivals = 64});
  std::array<std::byte, 1024> bytes{};
  const auto source = theirs->register_memory(bytes, MemoryKind::host);
  const std::string address = lane.address_for(1);
  verbs::RemoteMemory memory;
  std::memcpy(&memory, address.data(), sizeof memory);
  lane.connect(std::vector<std::string>{"", std::string(kBeforeEndpoint, '\0') + endpoint->address_for(0)},
               verbs::Clock::now());
  endpoint->connect(std::vector<std::string>{address.substr(kBeforeEndpoint), ""}, verbs::Clock::now());

  const verbs::Segment segment{bytes.data(), 1, source.get()};
  std::array<verbs::Completion, 16> done;
  while (!input.empty()) {
    const verbs::Write write{.peer = 0,
                             .segments = {&segment, 1},
                             .target = memory,
                             .immediate = input.value<std::uint32_t>(),
                             .context = 0};
    endpoint->post({&write, 1});
    endpoint->poll(done);
    lane.drive();
  }
  lane.halt();
  if (!lane.shut_down()) std::abort();
}

}  // namespace

std::vector<std::string> fuzz_seeds() {
  std::vector<std::string> seeds;
  for (const auto kind : {Immediate::Kind::message, Immediate::Kind::direct, Immediate::Kind::credit}) {
    for (const auto direction : {Direction::up, Direction::down}) {
      std::string seed;
      for (std::uint16_t i = 0; i < 5; ++i)
        append(seed, wire::encode({kind, {1, direction, static_cast<Priority>(i % wire::kPriorities)}, i}));
      seeds.push_back(seed);
    }
  }
  return seeds;
}

}  // namespace nzcl::test

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  nzcl::test::run({data, size});
  return 0;
}
