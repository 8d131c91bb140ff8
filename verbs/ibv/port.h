// Chooses the device, the port and the GID. They are found automatically, and can be forced by options.
#pragma once

#include <infiniband/verbs.h>

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "verbs/ibv/handles.h"
#include "verbs/transport.h"

namespace nzcl::verbs::ibv {

struct GidEntry {
  ibv_gid gid{};
  int index = 0;
  enum class Kind { infiniband, roce_v1, roce_v2 } kind = Kind::infiniband;
  bool ipv4_mapped() const;  // ::ffff:a.b.c.d
};

/// Chooses from a GID table: a RoCEv2 GID with an IPv4-mapped address before other RoCEv2 GIDs, and those
/// before all others. `forced` is the index that must be taken, or -1. Does no I/O.
std::optional<GidEntry> choose_gid(std::span<const GidEntry> entries, int forced);

struct Port {
  std::string device;  // "mlx5_0"
  std::uint8_t number = 1;
  ibv_mtu mtu = IBV_MTU_1024;
  bool ethernet = false;
  std::uint16_t lid = 0;
  GidEntry gid;
  std::uint32_t max_message_bytes = 0;
  int numa_node = -1;    // -1: not known
  double link_gbps = 0;  // one way; 0: not known
};

/// Chooses the port for a member: of the ports on this NUMA node, or of all ports if none is on it or
/// numa_node is -1, the one with number `local_rank`, modulo their number. Does no I/O.
std::size_t choose_port(std::span<const Port> ports, int numa_node, int local_rank);

struct OpenPort {
  Handle<ibv_context> context;
  Port port;
};

/// Opens a port that fits options.interface: "" for any active port, "mlx5_0", "mlx5_0:2", or the address or
/// name of its network interface. Of several it takes the one that choose_port() chooses. Throws
/// Error{unavailable} with the reason for each port that cannot be used.
OpenPort open_port(const DeviceOptions& options);

}  // namespace nzcl::verbs::ibv
