#include "verbs/datagram/udp/sender.h"

#include <netinet/udp.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace nzcl::verbs::udp {
namespace {

/// Datagrams for each system call. They fill one message, which the kernel takes 64 of at most.
constexpr std::size_t kBatch = 64;
/// The bytes of a message: an IPv4 packet of 65,535 without its headers.
constexpr std::size_t kMostMessageBytes = 65507;

bool is_temporary(int error) {
  return error == EAGAIN || error == EWOULDBLOCK || error == ENOBUFS || error == EINTR;
}

/// Of messages that are to be cut: the route or its device cannot do that (EIO), or the kernel cannot.
bool refuses_to_cut(int error) { return error == EIO || error == EINVAL || error == EOPNOTSUPP; }

/// The ancillary data that says how long the datagrams of a message are.
union SegmentSize {
  cmsghdr header;
  std::array<char, CMSG_SPACE(sizeof(std::uint16_t))> bytes;

  void attach_to(msghdr& message, std::size_t segment) {
    bytes = {};
    message.msg_control = bytes.data();
    message.msg_controllen = bytes.size();
    header.cmsg_level = IPPROTO_UDP;
    header.cmsg_type = UDP_SEGMENT;
    header.cmsg_len = CMSG_LEN(sizeof(std::uint16_t));
    const auto value = static_cast<std::uint16_t>(segment);
    std::memcpy(CMSG_DATA(&header), &value, sizeof value);
  }
};

}  // namespace

/// What sendmmsg() is given. Messages lie one behind the other in the batch.
struct Sender::Messages {
  std::array<mmsghdr, kBatch> headers;
  std::array<iovec, kBatch> vectors;
  std::array<SegmentSize, kBatch / 2> segments;
  std::array<std::size_t, kBatch> lengths;  // of each message, in datagrams
  std::size_t count = 0, datagrams = 0, cut = 0;

  void add(std::span<const Datagram> run, sockaddr_in* to) {
    const std::size_t first = datagrams;
    for (const Datagram& d : run)
      vectors[datagrams++] = {const_cast<std::byte*>(d.bytes.data()), d.bytes.size()};
    msghdr& header = headers[count].msg_hdr;
    header = {};
    header.msg_name = to;
    header.msg_namelen = to == nullptr ? 0 : sizeof *to;
    header.msg_iov = &vectors[first];
    header.msg_iovlen = run.size();
    if (run.size() > 1) segments[cut++].attach_to(header, run.front().bytes.size());
    lengths[count++] = run.size();
  }
};

Sender::Sender(const Socket& socket, std::size_t max_bytes)
    : socket_(socket), max_bytes_(max_bytes), joins_(socket.get(IPPROTO_UDP, UDP_SEGMENT) >= 0) {}

/// How many of these go into one message: the first, and those behind it that are as long. The last may be
/// shorter.
std::size_t Sender::run_length(std::span<const Datagram> datagrams) const noexcept {
  const Datagram& first = datagrams.front();
  const std::size_t size = first.bytes.size();
  if (!joins_ || !can_be_sent(first) || size == 0) return 1;
  std::size_t n = 1, bytes = size;
  for (const Datagram& d : datagrams.subspan(1)) {
    bytes += d.bytes.size();
    if (d.peer != first.peer || d.bytes.empty() || d.bytes.size() > size || bytes > kMostMessageBytes) break;
    ++n;
    if (d.bytes.size() < size) break;
  }
  return n;
}

std::size_t Sender::send(std::span<const Datagram> datagrams) noexcept {
  std::size_t done = 0;
  while (done < datagrams.size()) {
    const bool joined = joins_;
    const std::size_t accepted =
        send_some(datagrams.subspan(done, std::min(kBatch, datagrams.size() - done)));
    done += accepted;
    if (accepted == 0 && joined == joins_) break;
  }
  return done;
}

/// Sends one batch with one system call. Returns how many were accepted, and 0 if there is no room.
std::size_t Sender::send_some(std::span<const Datagram> datagrams) noexcept {
  Messages messages;
  for (std::size_t i = 0; i < datagrams.size();) {
    const auto run = datagrams.subspan(i, run_length(datagrams.subspan(i)));
    // Without an address, the kernel refuses a datagram.
    messages.add(run, can_be_sent(run.front()) ? &peers_[run.front().peer] : nullptr);
    i += run.size();
  }
  const int n =
      ::sendmmsg(socket_.fd(), messages.headers.data(), static_cast<unsigned>(messages.count), MSG_DONTWAIT);
  if (n < 0) return skip_refused(messages.lengths[0], errno);
  std::size_t accepted = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
    accepted += messages.lengths[i];
    joined_ += messages.lengths[i] - 1;
  }
  return accepted;
}

/// Called when the system did not take the first message, of `count` datagrams. What it will never take is
/// dropped, as the network might have dropped it. Returns how many datagrams are dealt with.
std::size_t Sender::skip_refused(std::size_t count, int error) noexcept {
  if (is_temporary(error)) return 0;
  if (count > 1 && refuses_to_cut(error)) {
    joins_ = false;
    return 0;
  }
  refused_ += count;
  return count;
}

}  // namespace nzcl::verbs::udp
