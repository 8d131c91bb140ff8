// Datagrams over UDP: batches of sendmmsg() and recvmmsg() on one socket that does not block.
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

#include "nzcl/error.h"
#include "verbs/datagram.h"
#include "verbs/udp/address.h"

namespace nzcl::verbs {
namespace {

using udp::Address;

constexpr std::size_t kHeaders = 20 + 8;  // of IPv4 without options, and of UDP
/// Datagrams for each system call: enough that the call itself costs little of each, and few enough that the
/// buffers to receive into stay in a core's cache.
constexpr std::size_t kBatch = 32;

class Socket {
 public:
  Socket() : fd_(::socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)) {
    if (fd_ < 0) throw Error(ErrorCode::system, fmt::format("udp: socket: {}", std::strerror(errno)));
  }
  ~Socket() { ::close(fd_); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int fd() const { return fd_; }

  bool set(int level, int name, int value) const {
    return ::setsockopt(fd_, level, name, &value, sizeof value) == 0;
  }
  int get(int level, int name) const {
    int value = 0;
    socklen_t size = sizeof value;
    return ::getsockopt(fd_, level, name, &value, &size) == 0 ? value : 0;
  }

 private:
  const int fd_;
};

class UdpPort final : public DatagramPort {
 public:
  explicit UdpPort(const DatagramOptions& options, const udp::Interface& interface)
      : max_bytes_(std::min(options.max_bytes, std::min<std::size_t>(interface.mtu, 65535) - kHeaders)),
        stride_((max_bytes_ + 64) / 64 * 64),
        buffers_(kBatch * stride_) {
    // Too large a datagram is refused instead of being cut into fragments, of which any lost one loses all.
    socket_.set(IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO);
    const int wanted = static_cast<int>(std::min<std::size_t>(options.receive_bytes, 1 << 30));
    if (!socket_.set(SOL_SOCKET, SO_RCVBUFFORCE, wanted)) socket_.set(SOL_SOCKET, SO_RCVBUF, wanted);
    if (!socket_.set(SOL_SOCKET, SO_SNDBUFFORCE, wanted)) socket_.set(SOL_SOCKET, SO_SNDBUF, wanted);
    bind(interface);
  }

  std::string address() const override { return own_.text(); }
  void connect(std::span<const std::string> addresses) override {
    peers_.assign(addresses.size(), {});
    senders_.clear();
    for (std::size_t i = 0; i < addresses.size(); ++i) {
      if (addresses[i].empty()) continue;
      const Address address = udp::parse_address(addresses[i]);
      peers_[i] = address.sockaddr();
      senders_.push_back({address, static_cast<PeerId>(i)});
    }
    std::ranges::sort(senders_, {}, &Sender::address);
  }
  std::size_t max_bytes() const noexcept override { return max_bytes_; }
  // The kernel doubles what it was asked for, and counts its own bookkeeping too.
  std::size_t receive_bytes() const noexcept override {
    return static_cast<std::size_t>(socket_.get(SOL_SOCKET, SO_RCVBUF)) / 2;
  }
  int wait_fd() const noexcept override { return socket_.fd(); }
  DatagramCounts counts() const noexcept override { return counts_; }

  std::size_t send(std::span<const Datagram> datagrams) noexcept override {
    std::size_t done = 0;
    while (done < datagrams.size()) {
      const auto batch = datagrams.subspan(done, std::min(kBatch, datagrams.size() - done));
      const std::size_t accepted = send_batch(batch);
      done += accepted;
      if (accepted < batch.size() && !skip_refused(done)) break;
    }
    counts_.sent += done;
    return done;
  }

  std::size_t receive(std::span<ArrivedDatagram> out) noexcept override {
    const std::size_t most = std::min(kBatch, out.size());
    std::array<mmsghdr, kBatch> messages{};
    std::array<iovec, kBatch> vectors;
    std::array<sockaddr_in, kBatch> from;
    for (std::size_t i = 0; i < most; ++i) {
      vectors[i] = {buffer(i), max_bytes_ + 1};
      messages[i].msg_hdr.msg_name = &from[i];
      messages[i].msg_hdr.msg_namelen = sizeof from[i];
      messages[i].msg_hdr.msg_iov = &vectors[i];
      messages[i].msg_hdr.msg_iovlen = 1;
    }
    const int n =
        ::recvmmsg(socket_.fd(), messages.data(), static_cast<unsigned>(most), MSG_DONTWAIT, nullptr);
    std::size_t taken = 0;
    for (int i = 0; i < n; ++i) {
      const auto at = static_cast<std::size_t>(i);
      const Sender* const sender = find(Address::of(from[at]));
      if (sender == nullptr || messages[at].msg_len > max_bytes_) {
        ++counts_.strange;
        continue;
      }
      out[taken++] = {sender->peer, {buffer(at), messages[at].msg_len}};
    }
    counts_.received += taken;
    return taken;
  }

 private:
  struct Sender {
    Address address;
    PeerId peer = 0;
  };

  void bind(const udp::Interface& interface) {
    sockaddr_in address = Address{interface.host, 0}.sockaddr();
    socklen_t size = sizeof address;
    if (::bind(socket_.fd(), reinterpret_cast<const ::sockaddr*>(&address), size) != 0 ||
        ::getsockname(socket_.fd(), reinterpret_cast<::sockaddr*>(&address), &size) != 0) {
      throw Error(ErrorCode::system,
                  fmt::format("udp: no port on interface {}: {}", interface.name, std::strerror(errno)));
    }
    own_ = Address::of(address);
  }
  std::byte* buffer(std::size_t i) { return buffers_.data() + i * stride_; }
  const Sender* find(const Address& address) const {
    const auto found = std::ranges::lower_bound(senders_, address, {}, &Sender::address);
    return found != senders_.end() && found->address == address ? &*found : nullptr;
  }

  std::size_t send_batch(std::span<const Datagram> batch) noexcept {
    std::array<mmsghdr, kBatch> messages{};
    std::array<iovec, kBatch> vectors;
    for (std::size_t i = 0; i < batch.size(); ++i) {
      vectors[i] = {const_cast<std::byte*>(batch[i].bytes.data()), batch[i].bytes.size()};
      // Without an address, the kernel refuses a datagram.
      if (batch[i].peer < peers_.size() && batch[i].bytes.size() <= max_bytes_) {
        messages[i].msg_hdr.msg_name = &peers_[batch[i].peer];
        messages[i].msg_hdr.msg_namelen = sizeof(sockaddr_in);
      }
      messages[i].msg_hdr.msg_iov = &vectors[i];
      messages[i].msg_hdr.msg_iovlen = 1;
    }
    const int n =
        ::sendmmsg(socket_.fd(), messages.data(), static_cast<unsigned>(batch.size()), MSG_DONTWAIT);
    refusal_ = n < 0 ? errno : 0;
    return n < 0 ? 0 : static_cast<std::size_t>(n);
  }
  /// Called when the system did not take a datagram. If it will never take it, it is dropped, as the network
  /// might have dropped it, and true is returned. After a part of a batch the reason is not known yet, and
  /// the next attempt brings it.
  bool skip_refused(std::size_t& done) noexcept {
    if (refusal_ == 0) return true;
    if (refusal_ == EAGAIN || refusal_ == EWOULDBLOCK || refusal_ == ENOBUFS || refusal_ == EINTR)
      return false;
    ++counts_.refused;
    ++done;
    return true;
  }

  const std::size_t max_bytes_;
  const std::size_t stride_;  // between the buffers: room for a byte too many, by which larger ones are known
  Socket socket_;
  Address own_;
  std::vector<sockaddr_in> peers_;
  std::vector<Sender> senders_;  // in the order of their addresses
  std::vector<std::byte> buffers_;
  DatagramCounts counts_;
  int refusal_ = 0;
};

}  // namespace

std::unique_ptr<DatagramPort> open_udp_port(const DatagramOptions& options) {
  return std::make_unique<UdpPort>(options, udp::find_interface(options));
}

}  // namespace nzcl::verbs
