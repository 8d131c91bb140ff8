// A stranger in the ranks' network. It sees what passes one rank's interface, which is what somebody may have
// recorded anywhere on the way, and sends forgeries of it from a host of its own: with the addresses of their
// senders, and as fast as it sees packets.
//   flooder WATCHED_NAMESPACE INTERFACE OWN_NAMESPACE
// Runs until it is ended by SIGTERM, and then prints how many it has sent of each kind.
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <netinet/ip.h>
#include <netinet/ip_icmp.h>
#include <netinet/udp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace {

constexpr std::size_t kPacket = sizeof(iphdr) + sizeof(udphdr), kHeader = 48, kChecksum = 40;
constexpr std::size_t kRound = 16, kRank = 6;
/// The identification of forged IP packets, by which they are not taken for somebody else's.
constexpr std::uint16_t kForged = 0x4e5a;

volatile sig_atomic_t over = 0;

void require(bool done, const char* what) {
  if (done) return;
  std::perror(what);
  std::exit(1);
}

/// Goes to a network namespace. Sockets stay in the one in which they were made.
void enter(const std::string& name) {
  const int fd = ::open(("/run/netns/" + name).c_str(), O_RDONLY | O_CLOEXEC);
  require(fd >= 0 && ::setns(fd, CLONE_NEWNET) == 0, name.c_str());
  ::close(fd);
}

int watch(const char* interface) {
  const int fd = ::socket(AF_PACKET, SOCK_DGRAM, htons(ETH_P_ALL));
  sockaddr_ll where{};
  where.sll_family = AF_PACKET;
  where.sll_protocol = htons(ETH_P_ALL);
  where.sll_ifindex = static_cast<int>(::if_nametoindex(interface));
  require(fd >= 0 && where.sll_ifindex > 0 &&
              ::bind(fd, reinterpret_cast<const sockaddr*>(&where), sizeof where) == 0,
          "watching");
  return fd;
}

using Packet = std::vector<std::uint8_t>;

bool is_of_the_exchange(const Packet& p) {
  iphdr ip;
  if (p.size() < kPacket + kHeader) return false;
  std::memcpy(&ip, p.data(), sizeof ip);
  return ip.version == 4 && ip.ihl == 5 && ip.protocol == IPPROTO_UDP && ip.id != htons(kForged) &&
         std::memcmp(p.data() + kPacket, "NZS1", 4) == 0;
}

class Stranger {
 public:
  Stranger() : fd_(::socket(AF_INET, SOCK_RAW, IPPROTO_RAW)) { require(fd_ >= 0, "raw socket"); }

  void forge(const Packet& original) {
    earlier_[static_cast<std::size_t>(copies_) % earlier_.size()] = original;
    copies_ += send(original);
    copies_ += send(earlier_[random_() % earlier_.size()]);  // of any age
    Packet changed = original;
    changed[changed.size() - 1 - random_() % (changed.size() - kPacket - kChecksum)] ^= 0x10;
    changed_ += send(changed);
    // A later round, as somebody would sign it who has another key.
    Packet signed_wrongly = original;
    signed_wrongly[kPacket + kRound] =
        static_cast<std::uint8_t>(signed_wrongly[kPacket + kRound] + 1 + random_() % 2);
    for (std::size_t i = 0; i < 8; ++i)
      signed_wrongly[kPacket + kChecksum + i] = static_cast<std::uint8_t>(random_());
    wrong_key_ += send(signed_wrongly);
    Packet other_rank = original;
    other_rank[kPacket + kRank] ^= 1;
    other_rank_ += send(other_rank);
    // The same bytes in forms that a program which expects plain packets does not look at.
    with_options_ += send(add_options(original));
    Packet padded = original;
    padded.insert(padded.end(), 4, 0);  // behind the end of the UDP packet
    padded_ += send(padded);
    too_large_ += send(say_too_large(original));
  }
  void tell() const {
    std::printf(
        "copies %ld, changed %ld, signed with another key %ld, of another rank %ld, with options %ld, padded "
        "%ld, too large %ld\n",
        copies_, changed_, wrong_key_, other_rank_, with_options_, padded_, too_large_);
  }

 private:
  static std::uint16_t sum_of(const std::uint8_t* at, std::size_t bytes) {
    std::uint32_t sum = 0;
    for (std::size_t i = 0; i < bytes; i += 2) sum += static_cast<std::uint32_t>(at[i]) << 8 | at[i + 1];
    while (sum > 0xffff) sum = (sum & 0xffff) + (sum >> 16);
    return htons(static_cast<std::uint16_t>(~sum));
  }
  /// What a router says to the sender of a packet that does not fit into its next link, of 600 bytes.
  static Packet say_too_large(const Packet& original) {
    iphdr ip;
    std::memcpy(&ip, original.data(), sizeof ip);
    std::swap(ip.saddr, ip.daddr);
    ip.protocol = IPPROTO_ICMP;
    icmphdr icmp{};
    icmp.type = ICMP_DEST_UNREACH;
    icmp.code = ICMP_FRAG_NEEDED;
    icmp.un.frag.mtu = htons(600);
    Packet packet(sizeof ip + sizeof icmp);
    std::memcpy(packet.data(), &ip, sizeof ip);
    std::memcpy(packet.data() + sizeof ip, &icmp, sizeof icmp);
    packet.insert(packet.end(), original.begin(), original.begin() + kPacket);
    icmp.checksum = sum_of(packet.data() + sizeof ip, packet.size() - sizeof ip);
    std::memcpy(packet.data() + sizeof ip, &icmp, sizeof icmp);
    return packet;
  }
  /// Four bytes of options, which say nothing.
  static Packet add_options(Packet packet) {
    packet[0] = 4 << 4 | 6;  // version, and the length of the header in words
    packet.insert(packet.begin() + sizeof(iphdr), 4, IPOPT_NOP);
    return packet;
  }
  /// Sends an IP packet with the addresses that are in it.
  long send(Packet packet) {
    if (packet.empty()) return 0;
    iphdr ip;
    std::memcpy(&ip, packet.data(), sizeof ip);
    ip.id = htons(kForged);
    std::memcpy(packet.data(), &ip, sizeof ip);
    if (ip.protocol == IPPROTO_UDP)  // without a checksum
      std::memset(packet.data() + 4 * ip.ihl + offsetof(udphdr, check), 0, sizeof(std::uint16_t));
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = ip.daddr;
    return ::sendto(fd_, packet.data(), packet.size(), MSG_DONTWAIT, reinterpret_cast<const sockaddr*>(&to),
                    sizeof to) > 0;
  }

  const int fd_;
  std::mt19937 random_{7};
  std::array<Packet, 64> earlier_;
  long copies_ = 0, changed_ = 0, wrong_key_ = 0, other_rank_ = 0, with_options_ = 0, padded_ = 0,
       too_large_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  require(argc == 4, "usage: flooder WATCHED_NAMESPACE INTERFACE OWN_NAMESPACE");
  ::signal(SIGTERM, [](int) { over = 1; });
  enter(argv[1]);
  const int seen = watch(argv[2]);
  enter(argv[3]);
  Stranger stranger;
  std::printf("watching\n");
  std::fflush(stdout);
  while (over == 0) {
    pollfd wait{.fd = seen, .events = POLLIN, .revents = 0};
    if (::poll(&wait, 1, 100) <= 0) continue;
    Packet packet(65536);
    const auto bytes = ::recv(seen, packet.data(), packet.size(), MSG_DONTWAIT);
    if (bytes <= 0) continue;
    packet.resize(static_cast<std::size_t>(bytes));
    if (is_of_the_exchange(packet)) stranger.forge(packet);
  }
  stranger.tell();
}
