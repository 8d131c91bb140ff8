// Strange and hostile packets, sent to both halves of the switch exchange over UDP, make nobody allocate.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <new>
#include <random>

#include "runtime/channel/lane_context.h"
#include "runtime/switch/port.h"
#include "runtime/switch/switch_exchange.h"

namespace {
std::atomic<std::uint64_t> allocations{0};

void* allocate(std::size_t bytes, std::size_t alignment) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  void* at = nullptr;
  if (::posix_memalign(&at, std::max(alignment, sizeof(void*)), std::max<std::size_t>(bytes, 1)) != 0)
    throw std::bad_alloc();
  return at;
}
}  // namespace

// Every allocation of this program is counted.
void* operator new(std::size_t bytes) { return allocate(bytes, alignof(std::max_align_t)); }
void* operator new[](std::size_t bytes) { return allocate(bytes, alignof(std::max_align_t)); }
void* operator new(std::size_t bytes, std::align_val_t a) {
  return allocate(bytes, static_cast<std::size_t>(a));
}
void* operator new[](std::size_t bytes, std::align_val_t a) {
  return allocate(bytes, static_cast<std::size_t>(a));
}
void operator delete(void* at) noexcept { std::free(at); }
void operator delete[](void* at) noexcept { std::free(at); }
void operator delete(void* at, std::size_t) noexcept { std::free(at); }
void operator delete[](void* at, std::size_t) noexcept { std::free(at); }
void operator delete(void* at, std::align_val_t) noexcept { std::free(at); }
void operator delete[](void* at, std::align_val_t) noexcept { std::free(at); }
void operator delete(void* at, std::size_t, std::align_val_t) noexcept { std::free(at); }
void operator delete[](void* at, std::size_t, std::align_val_t) noexcept { std::free(at); }

namespace nzcl::engine {
namespace {

using namespace slot_pool;

EngineConfig config_of(int self) {
  EngineConfig config;
  config.members = {.self = self, .workers = 2, .dedicated = 1};
  return config;
}

/// One member's half of the exchange, which the test drives. The other members are sockets of the test.
struct Half {
  explicit Half(int self)
      : context(config_of(self)), exchange(make_switch_exchange(context, SwitchConfig{})) {}
  LaneContext context;
  std::unique_ptr<Exchange> exchange;
};

class Socket {
 public:
  Socket() : fd_(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    own_.sin_family = AF_INET;
    own_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof own_;
    EXPECT_EQ(::bind(fd_, reinterpret_cast<sockaddr*>(&own_), size), 0);
    EXPECT_EQ(::getsockname(fd_, reinterpret_cast<sockaddr*>(&own_), &size), 0);
  }
  ~Socket() { ::close(fd_); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  std::string address() const { return "127.0.0.1:" + std::to_string(ntohs(own_.sin_port)); }
  void send(const std::string& to, std::span<const std::byte> bytes) const {
    sockaddr_in address = own_;
    address.sin_port = htons(static_cast<std::uint16_t>(std::stoi(to.substr(to.rfind(':') + 1))));
    EXPECT_EQ(
        ::sendto(fd_, bytes.data(), bytes.size(), 0, reinterpret_cast<sockaddr*>(&address), sizeof address),
        static_cast<ssize_t>(bytes.size()));
  }

 private:
  const int fd_;
  sockaddr_in own_{};
};

std::string worker_address(const Socket& socket) {
  return PortAddress{.address = socket.address(), .max_bytes = 1472, .job = {}}.encode();
}

/// Packets of any kind with any header fields, of any length, with the job's seal or without it. What would
/// end the communicator is left out, because its failure is described in memory of its own.
std::vector<std::byte> hostile_packet(std::mt19937& random, const Job& job, Kind kind) {
  static constexpr std::size_t kSizes[] = {0, 1, 47, 48, 49, 52, 1024, 1472, 8972, 9100};
  std::vector<std::byte> packet(kSizes[random() % std::size(kSizes)]);
  for (std::byte& b : packet) b = static_cast<std::byte>(random());
  if (packet.size() < sizeof(Header) || random() % 4 == 0) return packet;
  Header h;
  h.kind = kind;
  h.flags = static_cast<std::uint8_t>(random());
  h.rank = static_cast<std::uint16_t>(random() % 4);
  h.slot = static_cast<std::uint16_t>(random());
  h.round = 2 + random();  // of no round that can be under way
  h.piece = static_cast<std::uint32_t>(random());
  seal(h, job, packet);
  if (random() % 4 == 0) packet.back() ^= std::byte{1};
  return packet;
}

/// Sends packets to `half` from a member and from a stranger, and counts what it allocates while it takes
/// them.
void flood(Half& half, const std::string& to, const Job& job, Kind kind, const Socket& member) {
  const Socket stranger;
  std::mt19937 random(7);
  std::uint64_t allocated = 0;
  const std::uint64_t at_first = allocations.load();
  for (int i = 0; i < 2000; ++i) {
    const auto packet = hostile_packet(random, job, kind);
    (i % 3 == 0 ? stranger : member).send(to, packet);
    const std::uint64_t before = allocations.load();
    half.exchange->step();
    allocated += allocations.load() - before;
  }
  EXPECT_EQ(allocated, 0u);
  EXPECT_GT(allocations.load(), at_first) << "the test's own packets are counted";
  EXPECT_GT(half.context.statistics.bytes_received.load(), 0u);
  EXPECT_FALSE(half.context.failure) << half.context.failure->text;
}

TEST(SwitchAllocation, HostilePacketsMakeAnAggregatorAllocateNothing) {
  Half aggregator(2);
  const Socket ranks[2];
  const std::string own = aggregator.exchange->address();
  const PortAddress address = PortAddress::decode(own, "aggregator 0");
  const std::string all[] = {worker_address(ranks[0]), worker_address(ranks[1]), own};
  aggregator.exchange->connect(all);
  flood(aggregator, address.address, address.job, Kind::contribution, ranks[1]);
  flood(aggregator, address.address, address.job, Kind::question, ranks[0]);
  flood(aggregator, address.address, {}, Kind::contribution, ranks[0]);
}

TEST(SwitchAllocation, HostilePacketsMakeARankAllocateNothing) {
  Half rank(0);
  const Socket other, aggregator;
  const Job job = draw_job();
  const std::string own = rank.exchange->address();
  const std::string all[] = {own, worker_address(other),
                             PortAddress{.address = aggregator.address(),
                                         .max_bytes = 1472,
                                         .slots = 8,
                                         .window = 8,
                                         .job = job,
                                         .zeros = false}
                                 .encode()};
  rank.exchange->connect(all);
  const std::string to = PortAddress::decode(own, "rank 0").address;
  for (const Kind kind : {Kind::result, Kind::waiting, Kind::contribution})
    flood(rank, to, job, kind, aggregator);
}

}  // namespace
}  // namespace nzcl::engine
