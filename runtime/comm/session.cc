#include "runtime/comm/session.h"

#include <fmt/format.h>

#include "nzcl/error.h"
#include "runtime/comm/mapped.h"
#include "runtime/plan/transport_choice.h"

namespace nzcl::comm {

std::shared_ptr<verbs::Device> open_transport(const Options& o, const engine::Membership& m, int numa_node) {
  return verbs::open_device({.transport = engine::transport_of(o, m),
                             .interface = o.interface,
                             .one_host = m.hosts.all_together(),
                             .local_rank = m.cores.index_of(m.members.self),
                             .numa_node = numa_node,
                             .rdma_cm = o.connect == "rdma_cm",
                             .on_demand_paging = o.on_demand_paging == "on",
                             .max_segments = static_cast<std::size_t>(o.max_segments),
                             .gid_index = o.gid_index,
                             .traffic_class = o.traffic_class,
                             .service_level = o.service_level,
                             .ack_timeout = o.ack_timeout,
                             .timeout_s = o.timeout_s});
}

std::shared_ptr<Registration> Session::register_memory(void* data, std::size_t bytes, MemoryKind kind) {
  if (data == nullptr || bytes == 0)
    throw Error(ErrorCode::invalid_argument, "register_buffer: the range is empty");
  if (kind != MemoryKind::host) {
    throw Error(
        ErrorCode::unsupported,
        fmt::format("register_buffer: {} memory is not supported yet; copy the gradient to host memory",
                    name_of(kind)));
  }
  const std::span<std::byte> range{static_cast<std::byte*>(data), bytes};
  if (!is_mapped(range)) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("register_buffer: {} bytes at {} are not mapped in this process, or not all of them; "
                    "is the pointer stale, or the size in elements?",
                    bytes, data));
  }
  return registrations_.add(range, kind);
}

}  // namespace nzcl::comm
