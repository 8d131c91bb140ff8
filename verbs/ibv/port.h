// Which device, port and GID: found out rather than configured, and forced where somebody knows better.
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

/// Pure: RoCEv2 with an IPv4-mapped address first, then RoCEv2, then what there is. `forced`: this index, -1
/// = any.
std::optional<GidEntry> choose_gid(std::span<const GidEntry> entries, int forced);

struct Port {
  std::string device;  // "mlx5_0"
  std::uint8_t number = 1;
  ibv_mtu mtu = IBV_MTU_1024;
  bool ethernet = false;
  std::uint16_t lid = 0;
  GidEntry gid;
  std::uint32_t max_message_bytes = 0;
  int numa_node = -1;  // -1: not known
};

/// Pure: of the ports nearest to this NUMA node (all, if none is on it or it is -1) number `local_rank`,
/// going round.
std::size_t choose_port(std::span<const Port> ports, int numa_node, int local_rank);

struct OpenPort {
  Handle<ibv_context> context;
  Port port;
};

/// Opens the port that fits options.interface ("" = any active one, "mlx5_0", "mlx5_0:2", or the address or
/// name of its network interface); of several the nearest to options.numa_node, and of those number
/// options.local_rank. Throws Error{unavailable} saying for each why not.
OpenPort open_port(const DeviceOptions& options);

}  // namespace nzcl::verbs::ibv
