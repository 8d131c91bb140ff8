// The one interface to one-sided transports. A backend is passive: it has no threads and reads no environment
// variables, but is told what to do and is polled. The control path (open, register, connect) throws
// nzcl::Error. The data path (post, poll) returns values and does not allocate, lock or throw.
#pragma once

#include <array>
#include <atomic>
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

/// Memory of another process that this one may write. It travels over the network as these 16 bytes.
struct RemoteMemory {
  std::uint64_t address = 0;
  std::uint64_t key = 0;
  RemoteMemory offset(std::uint64_t bytes) const { return {address + bytes, key}; }
};

/// Where a peer is, seen from this process. A device that joins two others (verbs/mixed) reaches the peers of
/// its own host by one of them, and all others by the other one. To every other device both are the same.
enum class Level : std::uint8_t {
  between,  // hosts
  within,   // a host
};
inline constexpr std::size_t kLevels = 2;

/// Registered local memory. It owns the registration but not the bytes, and must outlive every write that
/// uses it. Immutable.
class MemoryRegion {
 public:
  virtual ~MemoryRegion() = default;
  virtual std::span<std::byte> bytes() const noexcept = 0;
  /// What a peer of another host needs to write at the region's first byte.
  virtual RemoteMemory remote() const noexcept = 0;
  /// What a peer at that level needs.
  virtual RemoteMemory remote_at(Level) const noexcept { return remote(); }
  /// The handle by which the backend at that level knows this region. Endpoints read it for every segment of
  /// a write, so it is not virtual.
  void* local_descriptor(Level level) const noexcept {
    return local_descriptors_[static_cast<std::size_t>(level)];
  }
  /// False for memory of a GPU, which only the device reads and writes.
  bool host_reaches() const noexcept { return host_reaches_; }

 protected:
  explicit MemoryRegion(void* local_descriptor = nullptr, bool host_reaches = true)
      : local_descriptors_{local_descriptor, local_descriptor}, host_reaches_(host_reaches) {}
  MemoryRegion(void* between, void* within) : local_descriptors_{between, within} {}

 private:
  const std::array<void*, kLevels> local_descriptors_;  // by level
  const bool host_reaches_ = true;
};

/// Memory of a GPU, as the kernel lends it to other devices: a dmabuf, whose bytes from `offset` on are those
/// at the addresses of `bytes`. These are the GPU's, and the host reads and writes none of them. The
/// descriptor is only needed while it is registered.
struct GpuMemory {
  int dmabuf = -1;
  std::uint64_t offset = 0;
  std::span<std::byte> bytes;
};

/// The longest gather list that any backend or engine uses, which bounds their arrays. Longer lists would
/// gain nothing, because the engines pack such data into one message instead.
inline constexpr std::size_t kMaxSegments = 16;

/// One entry of a gather list. `data` lies inside `region`.
struct Segment {
  const std::byte* data = nullptr;
  std::uint32_t bytes = 0;
  const MemoryRegion* region = nullptr;
};

/// One one-sided write. The gather list and the bytes belong to the transport until the write has completed.
/// The Write and Segment objects themselves are only needed until post() returns.
struct Write {
  PeerId peer = 0;
  /// At most Limits::max_segments entries, which hold between 1 and Limits::max_write_bytes bytes together.
  std::span<const Segment> segments;
  RemoteMemory target;
  /// The peer gets this value as an `arrived` completion after the bytes of this write are visible there.
  std::optional<std::uint32_t> immediate;
  std::uint64_t context = 0;  // returned in the `written` completion
};

struct Completion {
  enum class Kind : std::uint8_t {
    /// A write of this endpoint has ended and its source may be reused. `context` is set.
    written,
    /// All bytes of a peer's write with immediate are visible here. `immediate` is set, `peer` is not known.
    arrived,
    /// `peer` cannot be reached any more, or a write to it failed; kNoPeer if no single peer is to blame.
    /// Endpoint::failure() says why.
    failed,
  };
  static constexpr PeerId kNoPeer = ~PeerId{0};
  Kind kind = Kind::written;
  PeerId peer = kNoPeer;
  std::uint32_t immediate = 0;
  std::uint64_t context = 0;
};

/// The processor time that sending takes at both ends together. It is given as the number of bytes that could
/// be copied in the same time, so that the numbers hold for fast and slow machines alike. The planner decides
/// by it what to gather and what to pack (runtime/plan/cost_model.h).
struct Costs {
  double segment = 0;  // for one more entry of a gather list
  double write = 0;    // for one more write
  /// For each byte that is written to memory which did not come from Device::allocate(), in addition to what
  /// the same byte takes in memory that did.
  double foreign_byte = 0;
};

/// What a device allows, and what sending through it costs.
struct Limits {
  std::size_t max_segments = 1;
  std::size_t max_write_bytes = 1 << 20;
  std::size_t max_posted = 64;  // writes in flight per endpoint; post() accepts no more
  /// When a write with immediate arrives, all earlier writes to that peer are visible as well.
  bool ordered = false;
  /// Peers can read memory of Device::allocate() in place, through Endpoint::view(). Implies `ordered`.
  bool readable = false;
  /// Writes land and complete even while the receiver does not poll, from the first one on that it has polled
  /// for. Backends that connect when they are first used need it for that one.
  bool autonomous = false;
  double link_gbps = 0;  // of the device's link, one way, as the system says; 0: it has none or does not say
  /// How many descriptors an endpoint keeps open: by itself, and for each peer that is connected.
  std::size_t endpoint_descriptors = 1, peer_descriptors = 0;
  /// For how many peers an endpoint must be able to have descriptors at a time. Those of more peers either
  /// take turns, which takes time (EndpointOptions::peer_descriptors), or come when a peer is first needed.
  std::size_t least_peers = ~std::size_t{0};
  bool take_turns = false;  // the descriptors of peers do
  Costs costs;
};

/// One communication endpoint with its peers. Only one thread at a time may call post, poll and prepare_wait.
/// Destroying the endpoint stops all traffic: afterwards no write of a peer lands any more, as far as the
/// transport can promise that.
class Endpoint {
 public:
  virtual ~Endpoint() = default;

  /// The address that peer number `peer` must pass to its own connect() to reach this endpoint. Backends that
  /// have one connection per peer return a different address for each of them. The caller asks for the
  /// addresses of all peers before it calls connect().
  virtual std::string address_for(PeerId peer) = 0;
  /// Connects to all peers, or learns where they are if a peer is connected when it is first needed.
  /// addresses[i] is what peer i returned from address_for(index of this endpoint). An empty address leaves
  /// that peer out, as for this endpoint itself. Throws Error{timeout} or Error{transport} naming the peer.
  virtual void connect(std::span<const std::string> addresses, Deadline deadline) = 0;

  /// Posts writes in order and returns how many were accepted. There is no room for the rest now: poll, then
  /// post them again.
  virtual std::size_t post(std::span<const Write> writes) noexcept = 0;
  /// Takes completions into `out` and returns how many there were.
  virtual std::size_t poll(std::span<Completion> out) noexcept = 0;
  /// The address at which this process can read `bytes` bytes of a connected peer's Device::allocate()
  /// memory, or nullptr if it cannot. The address stays valid as long as this endpoint lives, even if the
  /// peer dies. Everything that the peer wrote before a write with immediate can be read once that immediate
  /// has arrived.
  virtual const std::byte* view(PeerId, RemoteMemory, std::size_t) const noexcept { return nullptr; }
  /// A text for the last `failed` completion: device, peer, operation and the provider's own words.
  virtual std::string failure() const = 0;

  /// The number of accepted writes whose completion poll() has not returned yet. Transports need the peers of
  /// an endpoint to live until it is 0.
  virtual std::size_t in_flight() const noexcept = 0;
  /// A file descriptor that becomes readable when poll() may return something. -1 if there is none: then
  /// sleep in small steps instead.
  virtual int wait_fd() const noexcept { return -1; }
  /// Prepares wait_fd() for a sleep. Returns false if the caller must not sleep but poll again.
  virtual bool prepare_wait() noexcept { return true; }
};

struct EndpointOptions {
  PeerId self = 0;              // this endpoint's index among its peers
  std::size_t peers = 1;        // number of peers, itself included
  std::size_t arrivals = 1024;  // largest number of immediates on their way to this endpoint
  /// The memory of Device::allocate() that the peers of this endpoint write or view. Several communicators
  /// may use one device, so without this the peers would also be told of memory that its owner may release
  /// while they connect. Empty: all that the device has allocated.
  std::span<const std::byte> allocated = {};
  /// How many descriptors the endpoint may keep for its peers, where these can take turns. 0: as many as it
  /// wants.
  std::size_t peer_descriptors = 0;
  /// Becomes true when connect() need not wait for peers any more, which then throws Error{aborted}. Set by
  /// another thread; it must outlive every connect(). nullptr: that never happens.
  const std::atomic<bool>* halted = nullptr;
  /// By peer, for devices that join two others: where each is. Empty: on other hosts.
  std::vector<Level> levels = {};
  /// At which level this endpoint is used, which says which of a region's descriptors it reads.
  Level level = Level::between;
  /// Whether only the peers at Level::within are connected to it. These all reach each other.
  bool within_only = false;

  /// Throws Error{aborted} if connect() need not wait for peers any more.
  void throw_if_halted() const;
  /// Returns true for this endpoint itself and the peers that may be connected to it.
  bool reaches(PeerId peer) const { return peer == self || !within_only || levels[peer] == Level::within; }
};

class Trial;
struct TrialOptions;

/// An opened device. Thread-safe. It must outlive its endpoints and regions.
class Device {
 public:
  virtual ~Device() = default;
  virtual std::string name() const = 0;  // for people to read: "shm", "tcp;ofi_rxm (eth0)"
  /// What holds for every peer.
  virtual const Limits& limits() const noexcept = 0;
  /// What holds for the peers at that level.
  virtual const Limits& limits_at(Level) const noexcept { return limits(); }
  /// Returns true if peers at different levels are reached in different ways.
  virtual bool is_mixed() const noexcept { return false; }
  /// The name of what reaches the peers at that level.
  virtual std::string name_at(Level) const { return name(); }
  /// Throws Error{system} with advice when the operating system refuses, for example because of the limit of
  /// locked memory.
  virtual std::unique_ptr<MemoryRegion> register_memory(std::span<std::byte> bytes, MemoryKind kind) = 0;
  /// Registers memory of a GPU, from where writes are sent then, and where those of peers land, without the
  /// host. Segments and peers name it by the GPU's addresses. Throws Error{unsupported} if this transport
  /// needs the host for that, Error{system} if the device or the kernel refuses.
  virtual std::unique_ptr<MemoryRegion> register_gpu_memory(const GpuMemory& memory);
  /// Allocates zeroed memory of the kind that peers write most cheaply over this transport, for buffers that
  /// they write often. It is not registered yet. Must be called before address_for() of the endpoints. Throws
  /// Error{system}.
  virtual std::span<std::byte> allocate(std::size_t bytes);
  /// Frees memory that allocate() returned and that nobody uses any more.
  virtual void release(std::span<std::byte> bytes) noexcept;
  virtual std::unique_ptr<Endpoint> open_endpoint(const EndpointOptions& options) = 0;
  /// For transports within a host: how its members find out whether they can share memory (trial.h). nullptr
  /// if there is nothing to try. Throws Error{unavailable} if this member alone cannot.
  virtual std::unique_ptr<Trial> begin_trial(const TrialOptions& options);
};

struct DeviceOptions {
  /// "cma", "shm", "tcp", "ibverbs" or any libfabric provider by its name ("libfabric-shm" is its shm); or
  /// two of them with a comma between, the first one for peers within the host and the second one for all
  /// others.
  std::string transport;
  /// A network interface or its address; "" = any. For ibverbs also a device ("mlx5_0") or a port of it
  /// ("mlx5_0:1"). Transports within a host ignore it.
  std::string interface;
  bool one_host = true;  // if false, loopback interfaces are not used
  /// The loopback interface reaches all members. TCP then uses it unless `interface` names another one, so
  /// that no other host can reach the endpoints.
  bool loopback_reaches_all = false;
  /// The address of this host by which the members have met, or "" if it is not known. TCP uses it where
  /// neither `interface` nor loopback is used, so that it listens in that network only.
  std::string met_at = {};
  // The rest is for native verbs only.
  int local_rank = 0;    // spreads the members of one host over its devices
  int numa_node = -1;    // the node where the buffers lie; the nearest device is taken; -1: not known
  bool rdma_cm = false;  // connect through the kernel's connection manager
  bool on_demand_paging = false;   // register without pinning, on devices that can
  std::uint32_t inline_bytes = 0;  // largest write that is sent inline; 0: kInlineBytes
  int mtu = 0;                     // of the path, in bytes; 0: the port's active MTU
  std::size_t max_segments = 0;    // entries of a gather list; 0: as many as the device grants
  int gid_index = -1;              // entry of the GID table; -1: choose_gid() in verbs/ibv/port.h
  int traffic_class = 0;
  int service_level = 0;
  int ack_timeout = 0;    // wait for an acknowledgement, 4.096 us * 2^n; 0: derived from timeout_s
  double timeout_s = 30;  // of an operation; a dead peer must be noticed sooner

  bool operator==(const DeviceOptions&) const = default;
};

/// One line of nzcl_info: a transport, and the reason if it cannot be used.
struct TransportInfo {
  std::string name;
  bool available = false;
  std::string detail;
  double link_gbps = 0;  // as in Limits
};

/// Opens a device by the name of its transport. Throws Error{unavailable} with the reason. The transport
/// "loopback" is not opened here, because it joins threads of one process (verbs/loopback/network.h).
std::shared_ptr<Device> open_device(const DeviceOptions& options);
/// What the device that open_device() opens would say in Limits::link_gbps. Nothing is opened that peers
/// could reach. 0 also if there is no such device.
double link_gbps(const DeviceOptions& options);
std::vector<TransportInfo> list_transports();
/// Whether this process may write the memory of the user's other processes. If so, "cma" is the transport
/// within a host.
bool may_write_processes();

}  // namespace nzcl::verbs
