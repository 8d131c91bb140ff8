#include "verbs/ibv/port.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "verbs/link_speed.h"

namespace nzcl::verbs::ibv {
namespace {

struct FreeList {
  void operator()(ibv_device** list) const { ibv_free_device_list(list); }
};

std::string read_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

int numa_node_of(const std::string& device) {
  const std::string base = "/sys/class/infiniband/" + device;
  std::string text = read_line(base + "/device/numa_node");
  // Soft-RoCE has no PCI device of its own; `parent` names the network interface that it uses.
  if (text.empty()) text = read_line("/sys/class/net/" + read_line(base + "/parent") + "/device/numa_node");
  return text.empty() ? -1 : std::atoi(text.c_str());
}

std::string interface_of(const std::string& device, std::uint8_t port, int gid_index) {
  return read_line(
      fmt::format("/sys/class/infiniband/{}/ports/{}/gid_attrs/ndevs/{}", device, port, gid_index));
}

std::string ipv4_text(const GidEntry& e) {
  if (!e.ipv4_mapped()) return {};
  std::array<char, INET_ADDRSTRLEN> text{};
  ::inet_ntop(AF_INET, e.gid.raw + 12, text.data(), text.size());
  return text.data();
}

std::vector<GidEntry> read_gids(ibv_context* context, std::uint8_t port, int table) {
  std::vector<ibv_gid_entry> raw(static_cast<std::size_t>(std::max(table, 1)));
  const auto n = ibv_query_gid_table(context, raw.data(), raw.size(), 0);
  std::vector<GidEntry> entries;
  for (std::size_t i = 0; n > 0 && i < static_cast<std::size_t>(n); ++i) {
    if (raw[i].port_num != port) continue;
    const auto kind = raw[i].gid_type == IBV_GID_TYPE_ROCE_V2   ? GidEntry::Kind::roce_v2
                      : raw[i].gid_type == IBV_GID_TYPE_ROCE_V1 ? GidEntry::Kind::roce_v1
                                                                : GidEntry::Kind::infiniband;
    entries.push_back({raw[i].gid, static_cast<int>(raw[i].gid_index), kind});
  }
  return entries;
}

/// Splits "mlx5_0:2" into {"mlx5_0", 2}. Port 0 stands for any port.
std::pair<std::string, int> split(const std::string& name) {
  const auto colon = name.rfind(':');
  if (colon == std::string::npos || name.find_first_not_of("0123456789", colon + 1) != std::string::npos)
    return {name, 0};
  return {name.substr(0, colon), std::atoi(name.c_str() + colon + 1)};
}

/// The largest MTU of the five that exist which is not larger than `bytes`.
ibv_mtu mtu_of(int bytes) {
  int code = IBV_MTU_256;
  while (code < IBV_MTU_4096 && 256 << code <= bytes) ++code;
  return static_cast<ibv_mtu>(code);
}

/// Fills in the port. Returns an empty string, or the reason why the port cannot be used.
std::string examine(ibv_context* context, const DeviceOptions& options, Port& port) {
  ibv_port_attr attr{};
  if (const int error = ibv_query_port(context, port.number, &attr)) return std::strerror(error);
  if (attr.state != IBV_PORT_ACTIVE)
    return fmt::format("port {} is {}", port.number, ibv_port_state_str(attr.state));
  port.mtu = attr.active_mtu;
  if (options.mtu > 0) port.mtu = std::min(port.mtu, mtu_of(options.mtu));
  port.ethernet = attr.link_layer == IBV_LINK_LAYER_ETHERNET;
  port.lid = attr.lid;
  port.max_message_bytes = attr.max_msg_sz;
  const auto entries = read_gids(context, port.number, attr.gid_tbl_len);
  const auto gid = choose_gid(entries, options.gid_index);
  if (!gid) {
    if (options.gid_index >= 0)
      return fmt::format("port {} has no GID with index {}", port.number, options.gid_index);
    return fmt::format("port {} has no GID: give its network interface an IP address", port.number);
  }
  port.gid = *gid;
  // The codes of a RoCE port have no value for each speed of Ethernet, so its interface knows better.
  if (port.ethernet) port.link_gbps = interface_gbps(interface_of(port.device, port.number, gid->index));
  if (port.link_gbps == 0) port.link_gbps = port_gbps(attr.active_speed, attr.active_width);
  const auto [name, wanted_port] = split(options.interface);
  const bool fits = options.interface.empty() ||
                    (name == port.device && (wanted_port == 0 || wanted_port == port.number)) ||
                    options.interface == ipv4_text(*gid) ||
                    options.interface == interface_of(port.device, port.number, gid->index);
  return fits ? "" : fmt::format("port {} does not belong to {}", port.number, options.interface);
}

/// Keeps registered memory usable when this process forks. Without it the parent gets a new copy of a page
/// that it writes after the fork, while the device goes on to use the old page. Kernels from 5.12 on give the
/// copy to the child, so that nothing is needed. On older kernels libibverbs keeps registered pages out of
/// child processes, which must then not touch them.
void prepare_for_fork() {
  // This runs once, even if several threads open devices, because libibverbs does not lock here. It fails if
  // another part of this process has registered memory already; that part has then decided for the whole
  // process.
  [[maybe_unused]] static const int refused =
      ibv_is_fork_initialized() == IBV_FORK_DISABLED ? ibv_fork_init() : 0;
}

}  // namespace

bool GidEntry::ipv4_mapped() const {
  constexpr std::array<std::uint8_t, 12> prefix{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::equal(prefix.begin(), prefix.end(), gid.raw);
}

std::optional<GidEntry> choose_gid(std::span<const GidEntry> entries, int forced) {
  const auto rank = [](const GidEntry& e) {
    switch (e.kind) {
      case GidEntry::Kind::roce_v2:
        return e.ipv4_mapped() ? 0 : 1;
      case GidEntry::Kind::infiniband:
        return 2;
      case GidEntry::Kind::roce_v1:
        return 3;
    }
    return 4;
  };
  const GidEntry* best = nullptr;
  for (const GidEntry& e : entries) {
    if (forced >= 0 && e.index != forced) continue;
    if (best == nullptr || rank(e) < rank(*best)) best = &e;
  }
  return best ? std::optional(*best) : std::nullopt;
}

std::size_t choose_port(std::span<const Port> ports, int numa_node, int local_rank) {
  std::vector<std::size_t> near;
  for (std::size_t i = 0; i < ports.size(); ++i) {
    if (numa_node >= 0 && ports[i].numa_node == numa_node) near.push_back(i);
  }
  const auto turn = static_cast<std::size_t>(local_rank);
  return near.empty() ? turn % ports.size() : near[turn % near.size()];
}

OpenPort open_port(const DeviceOptions& options) {
  prepare_for_fork();
  int count = 0;
  const std::unique_ptr<ibv_device*, FreeList> list(ibv_get_device_list(&count));
  if (!list || count == 0) {
    const bool forbidden =
        std::filesystem::exists("/sys/class/infiniband") && !std::filesystem::exists("/dev/infiniband");
    throw Error(ErrorCode::unavailable,
                forbidden
                    ? "ibverbs: there are RDMA devices, but no /dev/infiniband in this container: pass it in"
                    : "ibverbs: no RDMA device here; scripts/softroce makes software ones in a VM, "
                      "scripts/softroce-setup on this machine");
  }
  std::vector<OpenPort> found;
  std::string reasons;
  for (int i = 0; i < count; ++i) {
    ibv_device* device = list.get()[i];
    const std::string name = ibv_get_device_name(device);
    for (int number = 1;; ++number) {
      Handle<ibv_context> context(ibv_open_device(device));
      ibv_device_attr attr{};
      if (!context || ibv_query_device(context.get(), &attr) != 0) {
        reasons += fmt::format("; {}: {}{}", name, std::strerror(errno),
                               errno == EACCES ? " (may this user open /dev/infiniband?)" : "");
        break;
      }
      if (number > attr.phys_port_cnt) break;
      Port port{.device = name,
                .number = static_cast<std::uint8_t>(number),
                .gid = {},
                .numa_node = numa_node_of(name)};
      const std::string reason = examine(context.get(), options, port);
      if (!reason.empty()) {
        reasons += fmt::format("; {}: {}", name, reason);
      } else {
        found.push_back({std::move(context), port});
      }
    }
  }
  if (found.empty())
    throw Error(ErrorCode::unavailable,
                "ibverbs: no usable port: " + reasons.substr(std::min<std::size_t>(2, reasons.size())));
  std::vector<Port> ports;
  for (const OpenPort& p : found) ports.push_back(p.port);
  return std::move(found[choose_port(ports, options.numa_node, options.local_rank)]);
}

}  // namespace nzcl::verbs::ibv
