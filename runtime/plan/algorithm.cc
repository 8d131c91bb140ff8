#include "runtime/plan/algorithm.h"

#include <fmt/format.h>

#include "nzcl/error.h"
#include "runtime/plan/slice_layout.h"

namespace nzcl::engine {
namespace {

[[noreturn]] void refuse(const std::string& text) { throw Error(ErrorCode::invalid_argument, text); }

constexpr const char* kNoSwitch =
    "algorithm switch is for a whole communicator; set NZCL_ALGORITHM=switch, or options.algorithm";
constexpr const char* kOnlySwitch =
    "this communicator exchanges all operations by algorithm switch; take auto or switch";
constexpr const char* kNoAggregators =
    "algorithm doubling is between ranks alone, and there are dedicated aggregators; set aggregators to 0";

/// Returns true if the operation is one slice of doubling.
bool fits_doubling(const EngineConfig& config, wire::OperationRecord record) {
  if (!config.has_doubling() || record.collective != wire::Collective::allreduce) return false;
  record.algorithm = wire::Algorithm::doubling;
  return layout_of(config, 0, record).priority() == wire::Priority::doubling;
}

/// Precondition: the operation fits doubling. Nobody knows what the others hold, so the tensor counts as
/// dense.
bool doubling_pays(const EngineConfig& config, const wire::OperationRecord& record) {
  const ExchangeCase c = exchange_case(config, record, 1);
  return predict_doubling(c, config.link_costs).seconds() <
         kDoublingShare * predict_push(c, config.link_costs).seconds();
}

std::string why_not_doubling(const EngineConfig& config, const wire::OperationRecord& record) {
  if (config.members.dedicated > 0) return kNoAggregators;
  if (record.collective != wire::Collective::allreduce)
    return fmt::format("algorithm doubling is for allreduce, not for {}", wire::name_of(record.collective));
  if (!config.has_doubling())
    return fmt::format("algorithm doubling is not for {} ranks with slots of {} bytes",
                       config.members.workers, config.channel(wire::Priority::bulk).slot_bytes);
  return fmt::format(
      "algorithm doubling is for at most {} bytes of tensor and bitmap among {} ranks, and count is {}",
      doubling_bytes(config), config.members.workers, record.count);
}

}  // namespace

Algorithm algorithm_of(const std::string& option, const Members& members) {
  if (option == "push") return Algorithm::push;
  if (option == "switch") return Algorithm::switch_;
  if (option != "doubling") return Algorithm::automatic;
  if (members.dedicated > 0) refuse(std::string("option ") + kNoAggregators);
  return Algorithm::doubling;
}

wire::Algorithm choose_algorithm(const EngineConfig& config, const wire::OperationRecord& record,
                                 Algorithm asked) {
  if (static_cast<int>(asked) >= kRequestAlgorithms)
    refuse(fmt::format("allreduce: algorithm {} does not exist", static_cast<int>(asked)));
  if (config.algorithm == Algorithm::switch_) {
    if (asked == Algorithm::push || asked == Algorithm::doubling)
      refuse(std::string("allreduce: ") + kOnlySwitch);
    return wire::Algorithm::push;  // its packets do not say it
  }
  const bool alone = config.members.workers == 1;  // nothing is exchanged
  switch (asked) {
    case Algorithm::automatic:
      break;
    case Algorithm::push:
      return wire::Algorithm::push;
    case Algorithm::doubling:
      if (alone) return wire::Algorithm::push;
      if (!fits_doubling(config, record)) refuse("allreduce: " + why_not_doubling(config, record));
      return wire::Algorithm::doubling;
    case Algorithm::switch_:
      refuse(std::string("allreduce: ") + kNoSwitch);
  }
  if (alone || config.algorithm == Algorithm::push) return wire::Algorithm::push;
  // One hop is possible only where nothing else is asked for. It sends the messages of doubling, but all at
  // once.
  if (config.one_hop || !fits_doubling(config, record)) return wire::Algorithm::push;
  if (config.algorithm == Algorithm::doubling) return wire::Algorithm::doubling;
  return doubling_pays(config, record) ? wire::Algorithm::doubling : wire::Algorithm::push;
}

ExchangeCase exchange_case(const EngineConfig& config, const wire::OperationRecord& record, double density) {
  const SliceLayout layout = layout_of(config, 0, record);
  const Members& members = config.members;
  return {.ranks = members.workers,
          .owners = members.aggregators(),
          .ranks_per_core = config.ranks_per_core,
          .one_hop = config.one_hop && layout.express(),
          .elements = record.count,
          .element_bytes = layout.element_bytes(),
          .block_elems = layout.block_elements(),
          .density = density,
          .slices = layout.slices(),
          .tiled = layout.tiled(),
          .short_codes = config.short_codes};
}

}  // namespace nzcl::engine
