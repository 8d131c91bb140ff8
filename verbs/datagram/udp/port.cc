#include "verbs/datagram/udp/port.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "nzcl/error.h"
#include "verbs/datagram/udp/address.h"
#include "verbs/datagram/udp/receiver.h"
#include "verbs/datagram/udp/sender.h"
#include "verbs/datagram/udp/socket.h"

namespace nzcl::verbs::udp {
namespace {

constexpr std::size_t kHeaders = 20 + 8;  // of IPv4 without options, and of UDP

class UdpPort final : public DatagramPort {
 public:
  explicit UdpPort(const DatagramOptions& options, const Interface& interface)
      : max_bytes_(std::min(options.max_bytes, std::min<std::size_t>(interface.mtu, 65535) - kHeaders)),
        sender_(socket_, max_bytes_),
        receiver_(socket_, max_bytes_) {
    // A datagram that is too large is refused instead of being cut into fragments, because one lost fragment
    // would lose all of it. What is too large is decided by the interface alone. Messages of routers about
    // smaller links are not believed, because anybody can send them, and with them stop all datagrams of the
    // usual size.
    socket_.set(IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_PROBE);
    const int wanted = static_cast<int>(std::min<std::size_t>(options.receive_bytes, 1 << 30));
    if (!socket_.set(SOL_SOCKET, SO_RCVBUFFORCE, wanted)) socket_.set(SOL_SOCKET, SO_RCVBUF, wanted);
    if (!socket_.set(SOL_SOCKET, SO_SNDBUFFORCE, wanted)) socket_.set(SOL_SOCKET, SO_SNDBUF, wanted);
    bind(interface);
  }

  std::string address() const override { return own_.text(); }
  void connect(std::span<const std::string> addresses) override {
    std::vector<Address> peers(addresses.size());
    std::vector<sockaddr_in> targets(addresses.size());
    for (std::size_t i = 0; i < addresses.size(); ++i) {
      if (addresses[i].empty()) continue;
      peers[i] = parse_address(addresses[i]);
      targets[i] = peers[i].sockaddr();
    }
    sender_.connect(std::move(targets));
    receiver_.connect(peers);
  }
  void send_apart() override { sender_.send_apart(); }
  std::size_t max_bytes() const noexcept override { return max_bytes_; }
  // The kernel doubles what it was asked for, and counts its own bookkeeping too.
  std::size_t receive_bytes() const noexcept override {
    return static_cast<std::size_t>(std::max(socket_.get(SOL_SOCKET, SO_RCVBUF), 0)) / 2;
  }
  int wait_fd() const noexcept override { return socket_.fd(); }
  DatagramCounts counts() const noexcept override {
    return {.sent = sent_,
            .received = received_,
            .strange = receiver_.strange(),
            .refused = sender_.refused(),
            .joined = sender_.joined()};
  }

  std::size_t send(std::span<const Datagram> datagrams) noexcept override {
    const std::size_t n = sender_.send(datagrams);
    sent_ += n;
    return n;
  }
  std::size_t receive(std::span<ArrivedDatagram> out) noexcept override {
    const std::size_t n = receiver_.receive(out);
    received_ += n;
    return n;
  }

 private:
  void bind(const Interface& interface) {
    sockaddr_in address = Address{interface.host, 0}.sockaddr();
    socklen_t size = sizeof address;
    if (::bind(socket_.fd(), reinterpret_cast<const ::sockaddr*>(&address), size) != 0 ||
        ::getsockname(socket_.fd(), reinterpret_cast<::sockaddr*>(&address), &size) != 0) {
      throw Error(ErrorCode::system,
                  fmt::format("udp: no port on interface {}: {}", interface.name, std::strerror(errno)));
    }
    own_ = Address::of(address);
  }

  const std::size_t max_bytes_;
  const Socket socket_;
  Sender sender_;
  Receiver receiver_;
  Address own_;
  std::uint64_t sent_ = 0, received_ = 0;
};

}  // namespace

std::unique_ptr<DatagramPort> open_datagram_port(const DatagramOptions& options) {
  return std::make_unique<UdpPort>(options, find_interface(options));
}

}  // namespace nzcl::verbs::udp
