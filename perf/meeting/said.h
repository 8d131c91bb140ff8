// What members of a job say when they meet, without devices and lanes: texts as long as those of real ones,
// with random numbers where these have some.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "runtime/bootstrap/string_list.h"
#include "runtime/comm/join/hello.h"
#include "runtime/comm/join/lane_addresses.h"
#include "runtime/comm/join/node_and_link.h"
#include "runtime/comm/join/whereabouts.h"
#include "verbs/cma/address.h"
#include "verbs/ibv/address.h"

namespace perf::meeting {

using Texts = std::vector<std::string>;

/// Over what the hosts of a job reach each other. Within a host it is cma.
enum class Between : std::uint8_t { tcp, ibverbs };

/// Members, of which `per_host` at a time share a host.
struct Job {
  std::size_t members = 0, per_host = 8, lanes = 1;
  Between between = Between::tcp;

  friend void PrintTo(const Job& job, std::ostream* out) {
    *out << job.lanes << " lane(s), " << (job.between == Between::tcp ? "tcp" : "ibverbs");
  }
  bool together(std::size_t a, std::size_t b) const { return a / per_host == b / per_host; }
};

/// The addresses of one member's lanes.
class Addresses {
 public:
  Addresses(const Job& job, std::size_t member) : job_(job), member_(member), random_(member) {}

  /// Of one more lane, by member. This member itself has one too.
  Texts next_lane() {
    const std::string within = cma();
    const std::string memory = start(place_ -= kLaneBytes, key_++);
    const std::string host = job_.between == Between::tcp ? tcp() : ibverbs();
    Texts addresses;
    for (std::size_t peer = 0; peer < job_.members; ++peer) {
      if (job_.together(member_, peer)) {
        addresses.push_back(within);
      } else {
        addresses.push_back(memory + host);
      }
    }
    return addresses;
  }
  /// What a member of the same host needs to try whether it may write this one.
  std::string offer() { return cma().substr(0, 32); }

 private:
  std::string cma() {
    const std::uint64_t memory = place_ -= kLaneBytes;
    nzcl::verbs::cma::Address address;
    address.start = {.pid = static_cast<std::int32_t>(1000 + member_),
                     .segment_fd = 17,
                     .event_fd = 18,
                     .entries = 8192,
                     .segment_bytes = 1 << 20,
                     .nonce = random_()};
    address.memories = {{.address = memory, .bytes = 1 << 24, .fd = 16, .reserved = 0}};
    return start(memory, 0) + address.encode();
  }
  /// The same for all members of other hosts: libfabric's own address.
  std::string tcp() {
    std::string name(16, '\0');
    const auto number = static_cast<std::uint32_t>(member_ / job_.per_host);
    std::memcpy(name.data() + 4, &number, sizeof number);
    const std::uint64_t port = random_();
    std::memcpy(name.data() + 2, &port, 2);
    return "tcp;ofi_rxm" + std::string(1, '\0') + name;
  }
  /// The same for all members of other hosts: where calls arrive, and the token that they must show.
  std::string ibverbs() {
    nzcl::verbs::ibv::EndpointAddress address{
        .token = random_(), .calls = queue_pairs_++, .mtu = 3, .ethernet = 1};
    const auto number = static_cast<std::uint32_t>(member_ / job_.per_host);
    std::memcpy(address.gid + 12, &number, sizeof number);
    return address.encode();
  }
  std::uint64_t random_place() { return 0x7f0000000000 + (random_() >> 24 << 12); }
  /// What precedes every address: the lane's memory, and the secret of its messages.
  std::string start(std::uint64_t address, std::uint64_t key) {
    std::string text(28, '\0');
    const std::uint64_t secret = random_();
    std::memcpy(text.data(), &address, sizeof address);
    std::memcpy(text.data() + 8, &key, sizeof key);
    std::memcpy(text.data() + 16, &secret, sizeof secret);
    return text;
  }

  const Job job_;
  const std::size_t member_;
  std::mt19937_64 random_;
  /// The lanes' memories lie beside one another, and keys count up.
  static constexpr std::uint64_t kLaneBytes = 118 << 20;
  std::uint64_t place_ = random_place();
  std::uint64_t key_ = random_() >> 1;  // of the memory that is registered next
  std::uint32_t queue_pairs_ = 17;      // a device counts them
};

inline std::string hello(const Job& job, std::size_t member) {
  nzcl::comm::Hello h = nzcl::comm::make_hello({}, nzcl::comm::Role::worker, static_cast<int>(member));
  h.host_name = h.host = h.network = h.process_space = "node" + std::to_string(1000 + member / job.per_host);
  h.pid = static_cast<int>(20000 + member * 7 % 10000);
  return h.encode();
}

inline std::string node_and_link() {
  return nzcl::comm::NodeAndLink{
      .node = 0, .link = {.gbps = 100, .source = nzcl::engine::LinkSpeed::Source::device}, .scan_streams = 0}
      .encode();
}

/// By member: what each is told once the device is open (device_choice.cc), of a member whose control plane
/// listens at `port`. Only those of the same host are to try what is offered.
inline Texts offers(const Job& job, std::size_t member, const std::string& port) {
  const std::string whereabouts =
      nzcl::comm::Whereabouts{.port = port, .node_and_link = node_and_link()}.encode();
  const std::string offer = Addresses(job, member).offer();
  Texts told;
  for (std::size_t peer = 0; peer < job.members; ++peer)
    told.push_back(
        nzcl::bootstrap::encode_strings({"", whereabouts, job.together(member, peer) ? offer : ""}));
  return told;
}

/// By member: the addresses of all lanes.
inline Texts lane_addresses(const Job& job, std::size_t member) {
  Addresses addresses(job, member);
  nzcl::comm::LaneAddresses lanes;
  for (std::size_t lane = 0; lane < job.lanes; ++lane) lanes.add(addresses.next_lane());
  Texts told;
  for (std::size_t peer = 0; peer < job.members; ++peer) told.push_back(lanes.told(peer));
  return told;
}

}  // namespace perf::meeting
