// The one interface to one-sided transports. A backend is passive: it has no threads of its own and reads no
// environment; it is told what to do and is polled. Control path (open, register, connect) throws
// nzcl::Error; the data path (post, poll) returns values, does not allocate, lock or throw.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nzcl/types.h"

namespace nzcl::verbs {

using Clock = std::chrono::steady_clock;
using Deadline = Clock::time_point;

/// Index of a peer within an endpoint: its position in the list given to Endpoint::connect.
using PeerId = std::uint32_t;

/// Memory of another process that this one may write: travels on the wire as 16 bytes.
struct RemoteMemory {
  std::uint64_t address = 0;
  std::uint64_t key = 0;
  RemoteMemory offset(std::uint64_t bytes) const { return {address + bytes, key}; }
};

/// Registered local memory. Owns the registration, not the bytes; must outlive every write that uses it.
/// Immutable.
class MemoryRegion {
 public:
  virtual ~MemoryRegion() = default;
  virtual std::span<std::byte> bytes() const noexcept = 0;
  /// What a peer needs to write at the region's first byte.
  virtual RemoteMemory remote() const noexcept = 0;
  /// The backend's own handle, for its endpoints: read for every segment that is written.
  void* local_descriptor() const noexcept { return local_descriptor_; }

 protected:
  explicit MemoryRegion(void* local_descriptor = nullptr) : local_descriptor_(local_descriptor) {}

 private:
  void* const local_descriptor_;
};

/// Gather entries of a write that backends and the engines ever use: it bounds their arrays. More gains
/// nothing, as longer lists are packed instead.
inline constexpr std::size_t kMaxSegments = 16;

/// One entry of a gather list. `data` lies inside `region`.
struct Segment {
  const std::byte* data = nullptr;
  std::uint32_t bytes = 0;
  const MemoryRegion* region = nullptr;
};

/// One one-sided write. The gather list and the bytes belong to the transport until the write's completion;
/// the Write and Segment objects themselves only until post() returns.
struct Write {
  PeerId peer = 0;
  std::span<const Segment>
      segments;  // at most Limits::max_segments; in total 1..Limits::max_write_bytes bytes
  RemoteMemory target;
  std::optional<std::uint32_t>
      immediate;              // reaches the peer as an `arrived` completion, after this write's own data
  std::uint64_t context = 0;  // returned in the `written` completion
};

struct Completion {
  enum class Kind : std::uint8_t {
    written,  // a local write is over: its source may be reused. `context` is set.
    arrived,  // a peer's write with immediate is wholly visible here. `immediate` is set; `peer` is not
              // known.
    failed,   // `peer` (or kNoPeer) can't be reached any more, or a write failed; Endpoint::failure() says
              // why.
  };
  static constexpr PeerId kNoPeer = ~PeerId{0};
  Kind kind = Kind::written;
  PeerId peer = kNoPeer;
  std::uint32_t immediate = 0;
  std::uint64_t context = 0;
};

/// What sending takes of the processors of both ends, in bytes that could be copied meanwhile, so that it
/// holds for fast and slow ones: what plans are made from (runtime/comm/cost_model.h).
struct Costs {
  double segment = 0;       // one more entry of a gather list
  double write = 0;         // one more write
  double foreign_byte = 0;  // a byte of a write to memory that is not of allocate(), beyond one of a message
};

/// What a device grants, and what it takes.
struct Limits {
  std::size_t max_segments = 1;
  std::size_t max_write_bytes = 1 << 20;
  std::size_t max_posted = 64;  // writes that may be in flight per endpoint; post() accepts no more
  bool ordered = false;  // a write with immediate arrives after all earlier writes to that peer are visible
  // Peers can read memory of Device::allocate() where it lies, by Endpoint::view(). Implies `ordered`.
  bool readable = false;
  bool autonomous = false;  // writes land, and are completed, without the receiver's polling
  Costs costs;
};

/// One communication endpoint with its peers. One thread at a time may call post, poll and prepare_wait.
/// Destroying it stops all traffic: afterwards no peer's write lands any more, where the transport can
/// promise that.
class Endpoint {
 public:
  virtual ~Endpoint() = default;

  /// What peer number `peer` must pass to its own connect() for this endpoint (backends with a connection per
  /// peer return a different address for each). All peers that will connect are asked for before connect().
  virtual std::string address_for(PeerId peer) = 0;
  /// Connects to all peers; addresses[i] came from peer i's address_for(own index there). An empty address
  /// leaves that peer out (for example this endpoint itself). Throws Error{timeout|transport} naming the
  /// peer.
  virtual void connect(std::span<const std::string> addresses, Deadline deadline) = 0;

  /// Posts writes in order; returns how many were accepted (the rest: no room now, poll and try again).
  virtual std::size_t post(std::span<const Write> writes) noexcept = 0;
  /// Fills `out`; returns how many.
  virtual std::size_t poll(std::span<Completion> out) noexcept = 0;
  /// Where this process can read `bytes` bytes of a connected peer's Device::allocate() memory, as long as
  /// this endpoint lives, whatever becomes of the peer; nullptr: nowhere. What the peer wrote before a write
  /// with immediate can be read once that has arrived.
  virtual const std::byte* view(PeerId, RemoteMemory, std::size_t) const noexcept { return nullptr; }
  /// Text for the last `failed` completion: device, peer, operation, provider's own words.
  virtual std::string failure() const = 0;

  /// Writes that were accepted and whose completion poll() has not returned yet. Transports need an
  /// endpoint's peers alive until then.
  virtual std::size_t in_flight() const noexcept = 0;
  /// File descriptor that becomes readable when poll() may return something; -1: there is none, sleep in
  /// small steps.
  virtual int wait_fd() const noexcept { return -1; }
  /// Arms wait_fd. False: do not sleep, poll again.
  virtual bool prepare_wait() noexcept { return true; }
};

struct EndpointOptions {
  PeerId self = 0;              // this endpoint's index among its peers
  std::size_t peers = 1;        // number of peers, itself included
  std::size_t arrivals = 1024;  // immediates that may be on their way to this endpoint at any time
};

/// An opened device. Thread-safe; outlives its endpoints and regions.
class Device {
 public:
  virtual ~Device() = default;
  virtual std::string name() const = 0;  // for people: "shm", "tcp;ofi_rxm (eth0)"
  virtual const Limits& limits() const noexcept = 0;
  /// Throws Error{system} with what to do when the system refuses (memlock and the like).
  virtual std::unique_ptr<MemoryRegion> register_memory(std::span<std::byte> bytes, MemoryKind kind) = 0;
  /// Zeroed memory for what peers write most, such that they do it as cheaply as the transport can. It is not
  /// registered yet. Before the endpoints' address_for() is called. Throws Error{system}.
  virtual std::span<std::byte> allocate(std::size_t bytes);
  /// Of allocate(); nobody uses it any more.
  virtual void release(std::span<std::byte> bytes) noexcept;
  virtual std::unique_ptr<Endpoint> open_endpoint(const EndpointOptions& options) = 0;
};

struct DeviceOptions {
  std::string transport;  // "shm", "tcp" or any libfabric provider by its name
  // "" = any; a network interface or its address; ibverbs: also "mlx5_0", "mlx5_0:1"; shm: none is used
  std::string interface;
  bool one_host = true;  // false: loopback interfaces are no use
  // Native verbs only.
  int local_rank = 0;             // members of one host spread over its devices
  int numa_node = -1;             // of the buffers: the nearest device is taken; -1: not known
  bool rdma_cm = false;           // connect through the kernel's connection manager
  bool on_demand_paging = false;  // register without pinning; the device must be able to
  std::uint32_t inline_bytes =
      0;        // writes up to this size go inline, as far as granted; 0: the backend's choice
  int mtu = 0;  // of the path, in bytes; 0: the port's active one
  std::size_t max_segments = 0;  // of a gather list; 0: as many as the device grants
  int gid_index = -1;            // -1: RoCEv2 with an IPv4 address first
  int traffic_class = 0;
  int service_level = 0;
  int ack_timeout = 0;    // code of the queue pairs' timeout, 4.096 us * 2^n; 0: from timeout_s
  double timeout_s = 30;  // of an operation: dead peers must be known before
};

/// One line of nzcl_info: a transport, and why it can't be used if it can't.
struct TransportInfo {
  std::string name;
  bool available = false;
  std::string detail;
};

/// Opens a device by the transport's name; throws Error{unavailable} with the reason. "loopback" is not
/// opened here: it lives in one process (verbs/loopback/network.h).
std::shared_ptr<Device> open_device(const DeviceOptions& options);
std::vector<TransportInfo> list_transports();
/// May this process write the memory of its user's others? Then "cma" is the transport within a host.
bool may_write_processes();

}  // namespace nzcl::verbs
