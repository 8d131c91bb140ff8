#include "runtime/comm/join/join.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "nzcl/error.h"
#include "runtime/comm/join/hello.h"
#include "runtime/gpu/find_gpu.h"
#include "runtime/placement/memory.h"
#include "runtime/placement/topology.h"
#include "runtime/switch/registration.h"
#include "runtime/wire/immediate.h"

namespace nzcl::comm {
namespace {

engine::Membership read_introductions(const bootstrap::ControlPlane& control, int position) {
  std::vector<Hello> hellos;
  for (const std::string& text : control.introductions()) hellos.push_back(Hello::decode(text));
  engine::Membership membership = membership_of(hellos, position);
  membership.met_at = control.local_address();
  if (membership.members.count() > wire::kMaxMembers) {
    throw Error(ErrorCode::unsupported, fmt::format("{} members; at most {} are supported",
                                                    membership.members.count(), wire::kMaxMembers));
  }
  return membership;
}

}  // namespace

std::string introduction_text(const Options& options, const Identity& identity,
                              const placement::Topology& topology) {
  Hello own = make_hello(options, identity.role, identity.index);
  own.cores = static_cast<int>(topology.cores.size());
  own.cache_bytes = topology.cache_bytes;
  own.cpus = topology.cpus;
  own.may_have_gpus = gpu::may_have_gpus();
  return own.encode();
}

/// Dedicated aggregators come to one meeting, and it is easy to forget that a second one needs others. Not
/// every way of meeting can say who is missing, so whoever waits in vain is told.
std::unique_ptr<bootstrap::ControlPlane> meet(const Options& options, bootstrap::Meeting& meeting,
                                              const Identity& identity, const std::string& introduction,
                                              bootstrap::Deadline deadline) {
  try {
    return bootstrap::ControlPlane::join(meeting, deadline, introduction);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::timeout || options.aggregators == 0 || identity.role != Role::worker) throw;
    throw Error(
        e.code(),
        fmt::format(
            "{}. Each communicator that meets needs {} dedicated aggregator(s) of its own, started with "
            "the same NZCL_SESSION, here \"{}\" (nzcl_aggregator, or serve_aggregator() in a LocalGroup); "
            "a communicator that is made by split() is served by those of its parent",
            e.what(), options.aggregators, options.session));
  }
}

bootstrap::ControlPlane::Settings settings_of(const engine::Membership& membership) {
  std::vector<bool> serves;
  for (const int member : membership.member_of) serves.push_back(!membership.members.is_worker(member));
  return {
      .names = membership.names, .serves = std::move(serves), .one_host = membership.networks.all_together()};
}

Introduction introduce(Options options, const bootstrap::ControlPlane& control, int position,
                       const Identity& identity, const placement::Topology& topology) {
  if (options.numa_node >= 0 && !placement::is_node(options.numa_node)) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("numa_node: this machine has no NUMA node {} (lscpu lists them)", options.numa_node));
  }
  const Options asked = options;
  engine::Membership membership = read_introductions(control, position);
  const engine::Members& members = membership.members;
  auto wing = identity.wing ? identity.wing : engine::wing_of(options.algorithm);
  if (wing) wing->check(members);
  options.rank = members.is_worker(members.self) ? members.self : -1;
  options.world_size = members.workers;
  options.lanes = membership.lanes;
  const auto placement = placement::plan(topology, {.local_rank = membership.cores.index_of(members.self),
                                                    .local_ranks = membership.cores.size_of(members.self),
                                                    .lanes = membership.lanes,
                                                    .scan_threads = options.tune.scan_threads,
                                                    .pin = options.pin,
                                                    .node = options.numa_node});
  return {std::move(options), asked, std::move(membership), placement, std::move(wing)};
}

}  // namespace nzcl::comm
