#include "runtime/plan/transport_choice.h"

namespace nzcl::engine {

std::vector<std::string> transports_of(const Options& o, const Membership& m) {
  if (o.transport != "auto") return {o.transport};
  // libfabric's shm fails with an I/O error if the memory of some members may be written and that of others
  // may not. verbs/GOTCHAS.md says why.
  if (!m.hosts.all_together() || m.process_spaces.leave_some_out()) return {"tcp"};
  if (m.process_spaces.all_together()) return {"cma", "shm", "tcp"};
  return {"shm", "tcp"};
}

std::string transport_of(const Options& o, const Membership& m) { return transports_of(o, m).front(); }

verbs::DeviceOptions device_options(const Options& o, const Membership& m, int numa_node) {
  return {.transport = transport_of(o, m),
          .interface = o.interface,
          .one_host = m.networks.all_together(),
          .loopback_reaches_all = m.networks.all_together(),
          .met_at = m.met_at,
          .local_rank = m.cores.index_of(m.members.self),
          .numa_node = numa_node,
          .rdma_cm = o.connect == Connect::rdma_cm,
          .on_demand_paging = o.on_demand_paging,
          .max_segments = static_cast<std::size_t>(o.tune.max_segments),
          .gid_index = o.gid_index,
          .traffic_class = o.traffic_class,
          .service_level = o.service_level,
          .ack_timeout = o.tune.ack_timeout,
          .timeout_s = o.timeout_s};
}

}  // namespace nzcl::engine
