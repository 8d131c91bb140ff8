#include "verbs/datagram/udp/receiver.h"

#include <netinet/udp.h>

#include <algorithm>
#include <cstring>

namespace nzcl::verbs::udp {
namespace {

/// What the kernel says about a message that it has joined: the length of its datagrams.
union Control {
  cmsghdr header;
  std::array<char, CMSG_SPACE(sizeof(int))> bytes;
};

/// The largest message, and as much more as it may grow when its datagrams are aligned.
constexpr std::size_t kJoinedBytes = 66 << 10;

/// Room for a byte too many, by which larger datagrams are known. Buffers do not lie powers of two apart,
/// because their first bytes would then compete for the same few places of a core's cache.
std::size_t stride_of(bool joined, std::size_t max_bytes) {
  const std::size_t bytes = joined ? std::max(kJoinedBytes, max_bytes + 1) : max_bytes + 1;
  return (bytes + 63) / 64 * 64;
}

std::byte* align_to_line(std::byte* at) { return at + (64 - reinterpret_cast<std::uintptr_t>(at) % 64) % 64; }

/// Returns 0 for a message that is one datagram.
std::size_t datagram_size(msghdr& message) {
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != IPPROTO_UDP || c->cmsg_type != UDP_GRO) continue;
    int size = 0;
    std::memcpy(&size, CMSG_DATA(c), sizeof size);
    return static_cast<std::size_t>(std::max(size, 0));
  }
  return 0;
}

}  // namespace

Receiver::Receiver(const Socket& socket, std::size_t max_bytes)
    : socket_(socket),
      max_bytes_(max_bytes),
      joined_(socket.set(IPPROTO_UDP, UDP_GRO, 1)),
      stride_(stride_of(joined_, max_bytes)),
      buffers_(kBatch * stride_ + 64),
      first_buffer_(align_to_line(buffers_.data())) {}

void Receiver::connect(std::span<const Address> addresses) {
  senders_.clear();
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    if (addresses[i] != Address{}) senders_.push_back({addresses[i], static_cast<PeerId>(i)});
  }
  std::ranges::sort(senders_, {}, &Sender::address);
}

const Receiver::Sender* Receiver::find(const Address& address) const {
  const auto found = std::ranges::lower_bound(senders_, address, {}, &Sender::address);
  return found != senders_.end() && found->address == address ? &*found : nullptr;
}

std::size_t Receiver::receive(std::span<ArrivedDatagram> out) noexcept {
  if (next_ == count_) receive_messages();
  std::size_t n = 0;
  while (next_ < count_ && n < out.size()) {
    Message& m = messages_[next_];
    const std::size_t left = m.bytes - m.taken * m.size;
    out[n++] = {m.peer, {m.at + m.taken * m.stride, std::min(m.size, left)}};
    ++m.taken;
    if (left <= m.size) ++next_;
  }
  return n;
}

/// Takes as many messages as have come, and keeps those that are from peers.
void Receiver::receive_messages() noexcept {
  std::array<mmsghdr, kBatch> headers;
  std::array<iovec, kBatch> vectors;
  std::array<sockaddr_in, kBatch> from;
  std::array<Control, kBatch> controls;
  for (std::size_t i = 0; i < kBatch; ++i) {
    vectors[i] = {buffer(i), stride_};
    headers[i].msg_hdr = {.msg_name = &from[i],
                          .msg_namelen = sizeof from[i],
                          .msg_iov = &vectors[i],
                          .msg_iovlen = 1,
                          .msg_control = controls[i].bytes.data(),
                          .msg_controllen = controls[i].bytes.size(),
                          .msg_flags = 0};
  }
  next_ = count_ = 0;
  const int n = ::recvmmsg(socket_.fd(), headers.data(), kBatch, MSG_DONTWAIT, nullptr);
  for (int k = 0; k < n; ++k) {
    const auto i = static_cast<std::size_t>(k);
    const std::size_t bytes = headers[i].msg_len, size = datagram_size(headers[i].msg_hdr);
    accept({.at = buffer(i), .peer = 0, .bytes = bytes, .size = size ? size : bytes}, Address::of(from[i]));
  }
}

/// Keeps the message if a peer has sent it, and it can be one of a peer's.
void Receiver::accept(Message message, const Address& from) noexcept {
  const Sender* const sender = find(from);
  if (sender == nullptr || message.size > max_bytes_ || !align(message)) {
    ++strange_;
    return;
  }
  message.peer = sender->peer;
  messages_[count_++] = message;
}

/// Moves the datagrams of a message apart, the last one first, so that each is aligned. Returns false if
/// there is no room, because somebody has sent hundreds of tiny ones.
bool Receiver::align(Message& m) const noexcept {
  m.stride = (m.size + kAlignment - 1) / kAlignment * kAlignment;
  if (m.stride == m.size || m.bytes <= m.size) return true;
  const std::size_t count = (m.bytes + m.size - 1) / m.size;
  if (count * m.stride > stride_) return false;
  for (std::size_t i = count - 1; i > 0; --i)
    std::memmove(m.at + i * m.stride, m.at + i * m.size, std::min(m.size, m.bytes - i * m.size));
  return true;
}

}  // namespace nzcl::verbs::udp
