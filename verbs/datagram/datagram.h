// The second interface of this folder: unreliable datagrams up to an MTU, in batches. A port is as passive as
// an endpoint of transport.h: it has no threads and reads no environment variables. Opening and connecting
// throw nzcl::Error. send() and receive() return values and do not allocate, lock or throw.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "verbs/transport.h"

namespace nzcl::verbs {

/// One datagram to send. The bytes belong to the caller again when send() has returned.
struct Datagram {
  PeerId peer = 0;
  std::span<const std::byte> bytes;
};

/// One datagram that has come. The bytes stay valid until the port's next receive(), and are aligned to 16.
struct ArrivedDatagram {
  PeerId peer = 0;
  std::span<const std::byte> bytes;
};

/// What a port has done so far. Any of these numbers may be read at any time by the thread that drives it.
struct DatagramCounts {
  std::uint64_t sent = 0;      // accepted by send()
  std::uint64_t received = 0;  // returned by receive()
  /// Dropped because they came from an address that is not a peer's, or were too large for any peer to send.
  std::uint64_t strange = 0;
  std::uint64_t refused = 0;  // accepted by send(), but dropped because the system refused to send them
  /// Of those sent: handed to the system together with the one before. 0 where that is not possible.
  std::uint64_t joined = 0;
};

/// One port with its peers. What is sent may be lost, come twice, in another order, or changed; it is never
/// cut or joined. Bytes from an address that is not one of the peers' are dropped. An address can be forged,
/// so this keeps mistakes out but no attacker: the receiver checks what it gets.
///
/// Only one thread at a time may use a port.
class DatagramPort {
 public:
  virtual ~DatagramPort() = default;

  /// What a peer passes to its connect() to reach this port.
  virtual std::string address() const = 0;
  /// Names the peers: addresses[i] is that of peer i, and an empty one leaves that peer out. Returns at once,
  /// because there is nothing to agree on. Throws Error{transport} for an address that it cannot read.
  virtual void connect(std::span<const std::string> addresses) = 0;

  /// From now on hands each datagram to the system by itself. For peers on whose way something looks at
  /// datagrams before the system has taken apart what it was handed together.
  virtual void send_apart() {}

  /// The largest datagram that the path's first link carries in one piece. Larger ones are never sent.
  virtual std::size_t max_bytes() const noexcept = 0;
  /// How many bytes may wait here between two calls of receive(). What comes beyond that is lost, so it
  /// bounds what the peers together may have under way.
  virtual std::size_t receive_bytes() const noexcept = 0;

  /// Sends datagrams in order and returns how many were accepted. There is no room for the rest now: try
  /// again later.
  virtual std::size_t send(std::span<const Datagram> datagrams) noexcept = 0;
  /// Takes datagrams into `out` and returns how many there were.
  virtual std::size_t receive(std::span<ArrivedDatagram> out) noexcept = 0;

  virtual DatagramCounts counts() const noexcept = 0;
  /// A file descriptor that is readable while something has come that no call of receive() has seen; -1 if
  /// there is none. Before somebody sleeps on it, receive() has returned 0.
  virtual int wait_fd() const noexcept { return -1; }
};

enum class DatagramKind {
  udp,  // over IPv4
  ud,   // a UD queue pair of an RDMA device: datagrams of at most 4,096 bytes
};

struct DatagramOptions {
  DatagramKind kind = DatagramKind::udp;
  std::string interface {};  // of udp: a network interface or its address; "" = any
  bool one_host = true;      // of udp: if false, loopback interfaces are not used
  DeviceOptions device{};    // of ud: which port of which device, and how packets are marked
  /// A limit of DatagramPort::max_bytes(). The largest datagrams of networks with jumbo frames are of about
  /// this size, and every port keeps some dozens of buffers for them.
  std::size_t max_bytes = 8972;
  /// How many bytes DatagramPort::receive_bytes() should be. The system may grant less.
  std::size_t receive_bytes = 4 << 20;
};

/// Opens a port of the kind that the options name. Throws Error{unavailable, system} with advice.
std::unique_ptr<DatagramPort> open_datagram_port(const DatagramOptions& options);

}  // namespace nzcl::verbs
