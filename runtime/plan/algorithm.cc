#include "runtime/plan/algorithm.h"

#include <fmt/format.h>

#include "nzcl/error.h"
#include "runtime/plan/hierarchy.h"
#include "runtime/plan/partial_type.h"
#include "runtime/plan/slice_layout.h"

namespace nzcl::engine {
namespace {

[[noreturn]] void reject(const std::string& text) { throw Error(ErrorCode::invalid_argument, text); }

constexpr const char* kNoSwitch =
    "algorithm switch is for a whole communicator; set NZCL_ALGORITHM=switch, or options.algorithm";
constexpr const char* kOnlySwitch =
    "this communicator exchanges all operations by algorithm switch; take auto or switch";
/// With the name of one that has no aggregators.
std::string no_aggregators(std::string_view algorithm) {
  return fmt::format(
      "algorithm {} is between ranks alone, and there are dedicated aggregators; set aggregators to 0",
      algorithm);
}

/// Returns true if the operation is one slice of doubling.
bool fits_doubling(const EngineConfig& config, wire::OperationRecord record) {
  if (!config.has_doubling() || record.collective != wire::Collective::allreduce) return false;
  record.algorithm = wire::Algorithm::doubling;
  return layout_of(config, 0, record).priority() == wire::Priority::doubling;
}

/// Returns true if the operation's slices can be cut into tiles, and these merged.
bool fits_merging(const EngineConfig& config, wire::OperationRecord record) {
  if (!config.has_merging() || record.collective != wire::Collective::allreduce ||
      record.value_rule != wire::ValueRule::as_is)
    return false;
  record.algorithm = wire::Algorithm::merging;
  return layout_of(config, 0, record).tiled();
}

/// An average of bytes is made of a sum that bytes do not hold. What the columns have of a packed result is
/// put together by adding zeros to it, and these would count in a minimum.
bool fits_hierarchy(const EngineConfig& config, const wire::OperationRecord& record) {
  const auto op = static_cast<ReduceOp>(record.op);
  const bool wraps = static_cast<DataType>(record.type) == DataType::uint8 && op == ReduceOp::avg;
  const bool packed_extremes = record.packed_result != 0 && (op == ReduceOp::min || op == ReduceOp::max);
  return config.has_hierarchy() && record.collective == wire::Collective::allreduce && record.count > 0 &&
         record.value_rule == wire::ValueRule::as_is && !wraps && !packed_extremes;
}

std::string why_not_hierarchy(const EngineConfig& config, const wire::OperationRecord& record) {
  if (config.members.dedicated > 0) return no_aggregators("hierarchy");
  if (!config.has_hierarchy())
    return "algorithm hierarchy is for several hosts of which some have more than one rank";
  if (record.collective != wire::Collective::allreduce)
    return fmt::format("algorithm hierarchy is for allreduce, not for {}", wire::name_of(record.collective));
  if (record.packed_result != 0 && (static_cast<ReduceOp>(record.op) == ReduceOp::min ||
                                    static_cast<ReduceOp>(record.op) == ReduceOp::max))
    return "algorithm hierarchy is for sums and averages where the result is packed";
  if (record.value_rule != wire::ValueRule::as_is)
    return "algorithm hierarchy is not for values that travel in another type";
  return "algorithm hierarchy is not for averages of uint8, whose sums need a wider type";
}

/// Whether merging may be taken where nobody asks for it.
bool may_merge(const EngineConfig& config, const wire::OperationRecord& record) {
  return order_permits_merging(config, record) && fits_merging(config, record) &&
         worth_predicting_merging(config, record);
}

/// Small operations are left to those that need no other thread.
bool may_take_levels(const EngineConfig& config, const wire::OperationRecord& record) {
  return order_permits_hierarchy(config, record) && fits_hierarchy(config, record) &&
         !layout_of(config, 0, record).express();
}

/// Where push takes one hop it sends the messages of doubling, but all at once. So few ranks also leave small
/// blocks to push, whose tiles have shorter codes than doubling's bitmaps.
bool may_double(const EngineConfig& config, const wire::OperationRecord& record) {
  if (config.one_hop) {
    const SliceLayout layout = layout_of(config, 0, record);
    if (layout.express() || layout.tiled()) return false;
  }
  return fits_doubling(config, record);
}

std::string why_not_merging(const EngineConfig& config, const wire::OperationRecord& record) {
  if (config.members.dedicated > 0) return no_aggregators("merging");
  if (record.collective != wire::Collective::allreduce)
    return fmt::format("algorithm merging is for allreduce, not for {}", wire::name_of(record.collective));
  if (record.value_rule != wire::ValueRule::as_is)
    return "algorithm merging is not for values that travel in another type";
  return fmt::format(
      "algorithm merging is for tensors of single elements or small blocks; with slots of {} bytes, blocks "
      "of {} elements are too large",
      config.channel(wire::Priority::merging).slot_bytes, record.block_elems);
}

std::string why_not_doubling(const EngineConfig& config, const wire::OperationRecord& record) {
  if (config.members.dedicated > 0) return no_aggregators("doubling");
  if (record.collective != wire::Collective::allreduce)
    return fmt::format("algorithm doubling is for allreduce, not for {}", wire::name_of(record.collective));
  if (!config.has_doubling())
    return fmt::format("algorithm doubling is not for {} ranks with slots of {} bytes",
                       config.members.workers, config.channel(wire::Priority::bulk).slot_bytes);
  return fmt::format(
      "algorithm doubling is for at most {} bytes of tensor and bitmap among {} ranks, and count is {}",
      doubling_bytes(config), config.members.workers, record.count);
}

/// Returns the algorithm that is expected to be fastest, of those that give the bits of sums in rank order
/// unless any order will do. Push is taken unless another one is clearly faster.
wire::Algorithm fastest(const EngineConfig& config, const wire::OperationRecord& record) {
  const bool merges = may_merge(config, record), doubles = may_double(config, record);
  const bool levels = may_take_levels(config, record);
  if (!merges && !doubles && !levels) return wire::Algorithm::push;
  const ExchangeCase c = exchange_case(config, record, expected_density(config, record));
  const double push = predict_push(c, config.link_costs).seconds();
  wire::Algorithm best = wire::Algorithm::push;
  double least = push;
  const auto consider = [&](wire::Algorithm algorithm, const Prediction& p, double share) {
    if (p.seconds() >= share * push || p.seconds() >= least) return;
    best = algorithm;
    least = p.seconds();
  };
  if (doubles)
    consider(wire::Algorithm::doubling, predict_doubling(c, config.link_costs), doubling_share(c.ranks));
  if (merges) consider(wire::Algorithm::merging, predict_merging(c, config.link_costs), kMergingShare);
  if (levels) {
    const HierarchyShape& shape = config.hierarchy;
    consider(wire::Algorithm::hierarchy,
             predict_hierarchy(c, hierarchy_case(config, record), shape.within, shape.between),
             kHierarchyShare);
  }
  return best;
}

}  // namespace

void check_algorithm(Algorithm option, const Members& members) {
  if (members.dedicated > 0 &&
      (option == Algorithm::doubling || option == Algorithm::merging || option == Algorithm::hierarchy))
    reject("option " + no_aggregators(name_of(option)));
}

wire::Algorithm choose_algorithm(const EngineConfig& config, const wire::OperationRecord& record,
                                 Algorithm asked) {
  if (static_cast<int>(asked) >= kRequestAlgorithms)
    reject(fmt::format("allreduce: algorithm {} does not exist", static_cast<int>(asked)));
  if (config.algorithm == Algorithm::switch_) {
    if (asked != Algorithm::automatic && asked != Algorithm::switch_)
      reject(std::string("allreduce: ") + kOnlySwitch);
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
      if (!fits_doubling(config, record)) reject("allreduce: " + why_not_doubling(config, record));
      return wire::Algorithm::doubling;
    case Algorithm::merging:
      if (alone || record.count == 0) return wire::Algorithm::push;
      if (!fits_merging(config, record)) reject("allreduce: " + why_not_merging(config, record));
      return wire::Algorithm::merging;
    case Algorithm::hierarchy:
      if (alone || record.count == 0) return wire::Algorithm::push;
      if (!fits_hierarchy(config, record)) reject("allreduce: " + why_not_hierarchy(config, record));
      return wire::Algorithm::hierarchy;
    case Algorithm::switch_:
      reject(std::string("allreduce: ") + kNoSwitch);
  }
  if (alone) return wire::Algorithm::push;
  switch (config.algorithm) {
    case Algorithm::automatic:
      break;
    case Algorithm::push:
    case Algorithm::switch_:
      return wire::Algorithm::push;
    case Algorithm::doubling:
      return fits_doubling(config, record) ? wire::Algorithm::doubling : wire::Algorithm::push;
    case Algorithm::merging:
      return fits_merging(config, record) ? wire::Algorithm::merging : wire::Algorithm::push;
    case Algorithm::hierarchy:
      return fits_hierarchy(config, record) ? wire::Algorithm::hierarchy : wire::Algorithm::push;
  }
  return fastest(config, record);
}

Algorithm public_algorithm(const EngineConfig& config, wire::Algorithm chosen) {
  if (config.algorithm == Algorithm::switch_) return Algorithm::switch_;
  switch (chosen) {
    case wire::Algorithm::push:
      break;
    case wire::Algorithm::doubling:
      return Algorithm::doubling;
    case wire::Algorithm::merging:
      return Algorithm::merging;
    case wire::Algorithm::hierarchy:
      return Algorithm::hierarchy;
  }
  return Algorithm::push;
}

HierarchyCase hierarchy_case(const EngineConfig& config, const wire::OperationRecord& record) {
  const HierarchyShape& shape = config.hierarchy;
  const SliceLayout flat = layout_of(config, 0, record);
  const std::uint64_t bytes = record.count * element_bytes(static_cast<DataType>(record.type));
  return {.hosts = shape.hosts,
          .ranks = shape.most_ranks,
          .columns = shape.columns,
          .pieces = pieces_of(bytes),
          .tiled = flat.tiled()};
}

bool order_permits_hierarchy(const EngineConfig& config, const wire::OperationRecord& record) {
  constexpr int kManyRanks = 4;  // up to three ranks merge in their order, but hosts do not sum in it
  return config.any_order ||
         same_in_any_order(static_cast<DataType>(record.type), static_cast<ReduceOp>(record.op), kManyRanks);
}

bool order_permits_merging(const EngineConfig& config, const wire::OperationRecord& record) {
  return config.any_order || same_in_any_order(static_cast<DataType>(record.type),
                                               static_cast<ReduceOp>(record.op), config.members.workers);
}

bool worth_predicting_merging(const EngineConfig& config, const wire::OperationRecord& record) {
  if (are_many(config.members)) return true;
  const SliceLayout layout = layout_of(config, 0, record);
  if (layout.express()) return false;
  return layout.tiled() || record.packed_result != 0 || record.density().known();
}

double expected_density(const EngineConfig& config, const wire::OperationRecord& record) {
  if (const wire::Density density = record.density(); density.known()) return density.share();
  return record.packed_result != 0 ? config.packed_density : 1;
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
          .partial_bytes = element_bytes(
              partial_type(static_cast<DataType>(record.type), static_cast<ReduceOp>(record.op))),
          .short_codes = config.short_codes,
          .streams = record.packed_result != 0};
}

}  // namespace nzcl::engine
