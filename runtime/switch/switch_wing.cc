#include "runtime/switch/switch_wing.h"

#include <fmt/format.h>

#include "nzcl/error.h"
#include "runtime/plan/transport_choice.h"
#include "runtime/switch/operation_tensor.h"
#include "runtime/switch/registration.h"
#include "runtime/switch/switch_exchange.h"
#include "verbs/mixed/pair.h"

namespace nzcl::engine {

namespace slot_pool {
namespace {

class SwitchWing final : public Wing {
 public:
  explicit SwitchWing(std::shared_ptr<KernelPools> kernel_pools) : kernel_pools_(std::move(kernel_pools)) {}

  void check(const Members& members) const override {
    if (members.dedicated > 0) return;
    throw Error(
        ErrorCode::invalid_argument,
        "algorithm is switch, which needs dedicated aggregators: start nzcl_aggregator --switch, and set "
        "NZCL_AGGREGATORS to their number on all members");
  }

  std::function<std::unique_ptr<Exchange>(LaneContext&)> plan(const Options& options,
                                                              const Membership& membership) const override {
    return [config = SwitchConfig{port_options(options, membership), kernel_pools_}](LaneContext& context) {
      return make_switch_exchange(context, config);
    };
  }

  std::optional<std::string> why_not(const wire::OperationRecord& record) const override {
    if (can_sum(record)) return std::nullopt;
    return fmt::format(
        "{}: not with NZCL_ALGORITHM=switch, which does allreduces with dense results: sums of "
        "int32, and sums and averages of float32, float16 and bfloat16, without a wire_type; "
        "this is {} of {}{}",
        wire::name_of(record.collective), name_of(static_cast<ReduceOp>(record.op)),
        name_of(static_cast<DataType>(record.type)), record.packed_result ? " with a packed result" : "");
  }
  const char* why_no_sparse_input() const override {
    return "allreduce: not with NZCL_ALGORITHM=switch, which takes dense inputs only (a bitmap may say which "
           "blocks are not zero)";
  }
  const char* why_no_coded_results() const override {
    return "algorithm switch cannot: its owners have no states; take another algorithm";
  }

 private:
  const std::shared_ptr<KernelPools> kernel_pools_;
};

}  // namespace

std::shared_ptr<const Wing> make_switch_wing(std::shared_ptr<KernelPools> kernel_pools) {
  return std::make_shared<SwitchWing>(std::move(kernel_pools));
}

verbs::DatagramOptions port_options(const Options& options, const Membership& membership) {
  verbs::DatagramOptions port;
  port.interface = options.interface;
  port.one_host = membership.networks.all_together();
  if (verbs::between_hosts(transport_of(options, membership)) == "ibverbs") {
    const auto self = static_cast<std::size_t>(membership.members.self);
    port.kind = verbs::DatagramKind::ud;
    port.device = device_options(options, membership, membership.nodes.empty() ? -1 : membership.nodes[self]);
    port.device.transport = "ibverbs";
  }
  return port;
}

}  // namespace slot_pool

std::shared_ptr<const Wing> wing_of(Algorithm algorithm) {
  return algorithm == Algorithm::switch_ ? slot_pool::make_switch_wing(nullptr) : nullptr;
}

}  // namespace nzcl::engine
