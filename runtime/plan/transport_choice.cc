#include "runtime/plan/transport_choice.h"

#include "verbs/mixed/pair.h"

namespace nzcl::engine {

namespace {

constexpr const char* kAuto = "auto";

/// The transports that suit the members of each host among themselves, by what they have said.
std::vector<std::string> within_hosts(const Membership& m) {
  bool may_write = true;
  for (const std::vector<int>& host : m.hosts.all_members())
    may_write &= m.process_spaces.among(host).all_together();
  return may_write ? std::vector<std::string>{"cma", "shm"} : std::vector<std::string>{"shm"};
}

}  // namespace

std::vector<std::string> transports_of(const Options& o, const Membership& m) {
  const auto pair = verbs::TransportPair::of(o.transport);
  if (o.transport != kAuto && !pair) return {o.transport};
  const auto [within, between] = pair.value_or(verbs::TransportPair{kAuto, "tcp"});
  if (m.hosts.none_together()) return {between};
  std::vector<std::string> all;
  for (const std::string& name : within == kAuto ? within_hosts(m) : std::vector{within})
    all.push_back(m.hosts.all_together() ? name : verbs::TransportPair{name, between}.text());
  if (within == kAuto) all.push_back(between);
  return all;
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
