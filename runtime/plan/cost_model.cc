#include "runtime/plan/cost_model.h"

#include <algorithm>
#include <cmath>

#include "runtime/plan/engine_config.h"
#include "runtime/plan/tuning.h"

namespace nzcl::engine {

namespace {

/// How many rings of one priority a member has. A colocated one has two for every other one, up and down.
/// With dedicated aggregators, a worker has only one for each aggregator, and an aggregator one for each
/// worker.
std::uint64_t rings_of(const Members& members) {
  const int rings =
      members.dedicated > 0 ? std::max(members.workers, members.dedicated) : 2 * (members.workers - 1);
  return static_cast<std::uint64_t>(std::max(1, rings));
}

/// Returns how many slots each bulk channel of a member may have, so that its rings stay within kRingBytes.
std::uint64_t slots_that_fit(const Members& members, std::uint64_t slot_bytes) {
  return kRingBytes / (rings_of(members) * slot_bytes);
}

/// The size of slots with which the `fewest` that a ring may have stay within `bytes` in all rings.
std::uint64_t slot_bytes_of_many(const Members& members, std::uint64_t bytes, std::uint32_t fewest,
                                 std::uint64_t wanted) {
  const std::uint64_t each = bytes / (rings_of(members) * fewest);
  const std::uint64_t slot = each - std::min(each, kSlotTail);
  return std::min(wanted, std::max(slot, kLeastSlotBytes)) / 64 * 64;
}

/// How many slots of kLeastSlotBytes or more a bulk channel of a member may have, up to kBulkSlotsOfMany.
std::uint32_t bulk_slots_of_many(const Members& members) {
  const std::uint64_t fit = kBulkRingBytesOfMany / (rings_of(members) * (kLeastSlotBytes + kSlotTail));
  return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(fit, kFewestBulkSlots, kBulkSlotsOfMany));
}

std::uint32_t slots_of_many(const Members& members, std::uint64_t bytes, std::uint32_t fewest,
                            std::uint64_t slot_bytes) {
  const std::uint64_t fit = bytes / (rings_of(members) * (slot_bytes + kSlotTail));
  return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(fit, fewest, kLeastSlots));
}

std::uint64_t bulk_slot_bytes_of_few(const Members& members, bool one_network) {
  if (!one_network) return members.dedicated > 0 ? kDedicatedSlotBytes : kBulkSlotBytes;
  return slots_that_fit(members, kHostSlotBytes) >= kLeastSlots ? kHostSlotBytes : kBulkSlotBytes;
}

}  // namespace

bool are_many(const Members& members) { return rings_of(members) > kManyRings; }

std::uint64_t bulk_slot_bytes(const Members& members, bool one_network) {
  const std::uint64_t bytes = bulk_slot_bytes_of_few(members, one_network);
  if (!are_many(members)) return bytes;
  return slot_bytes_of_many(members, kBulkRingBytesOfMany, bulk_slots_of_many(members), bytes);
}

std::uint32_t bulk_slots(const Members& members, bool one_network, std::uint64_t slot_bytes) {
  if (are_many(members)) return slots_of_many(members, kBulkRingBytesOfMany, kFewestBulkSlots, slot_bytes);
  if (one_network) return kLeastSlots;
  const std::uint32_t most = members.dedicated > 0 ? kMostDedicatedSlots : kMostSlots;
  return static_cast<std::uint32_t>(
      std::clamp<std::uint64_t>(slots_that_fit(members, slot_bytes), kLeastSlots, most));
}

std::uint64_t express_slot_bytes(const Members& members) {
  if (!are_many(members)) return kExpressSlotBytes;
  return slot_bytes_of_many(members, kExpressRingBytesOfMany, kFewestExpressSlots, kExpressSlotBytes);
}

std::uint32_t express_slots(const Members& members, std::uint64_t slot_bytes) {
  if (!are_many(members)) return kLeastSlots;
  return slots_of_many(members, kExpressRingBytesOfMany, kFewestExpressSlots, slot_bytes);
}

std::uint64_t ahead_bytes(bool one_network, std::uint64_t cache_bytes) {
  return one_network ? cache_bytes : 0;
}

std::uint64_t gather_from(const verbs::Costs& costs) {
  return static_cast<std::uint64_t>(std::ceil(costs.segment));
}

bool one_hop_pays(int ranks) { return ranks <= kMostOneHopRanks; }

std::uint64_t direct_from(const verbs::Costs& costs, int ranks) {
  return direct_from(costs, ranks - 1, {}, 0);
}

std::uint64_t direct_from(const verbs::Costs& between, int ranks_between, const verbs::Costs& within,
                          int ranks_within) {
  // A run of b bytes costs write + b * foreign_byte for each receiver as direct writes, and b for each
  // receiver and for this rank as copies.
  const double copies = ranks_between + ranks_within + 1;
  const double foreign = ranks_between * between.foreign_byte + ranks_within * within.foreign_byte;
  const double saved = copies - foreign;  // per byte of the run
  const double bytes = (ranks_between * between.write + ranks_within * within.write) / saved;
  return saved > 0 && bytes < 1e18 ? static_cast<std::uint64_t>(std::ceil(bytes)) : kNeverDirect;
}

}  // namespace nzcl::engine
