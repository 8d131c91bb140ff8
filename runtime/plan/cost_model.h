// What a channel, a message or a write is worth. These choices shape what is sent and how, but never the
// results.
#pragma once

#include <cstdint>

#include "runtime/plan/members.h"
#include "verbs/transport.h"

namespace nzcl::engine {

/// Returns true if a member has so many peers (kManyRings) that what it keeps for each has to be small.
bool are_many(const Members& members);

/// Size of a bulk channel's slots in bytes, if the user leaves it to nzcl. The largest messages have this
/// size, and so has the largest tile. Within one host large tiles save time, if there are not so many members
/// that their slots take too much memory. Over links small messages keep the links busy. Among many members
/// (kManyRings) slots are so small that kBulkSlotsOfMany for each channel stay within kBulkRingBytesOfMany.
std::uint64_t bulk_slot_bytes(const Members& members, bool one_network);
/// Number of slots of a bulk channel, if the user leaves it to nzcl. So many messages may be under way to a
/// member before its first credit comes back. Within one host a few are enough, and what lies in them stays
/// in cache. Between hosts a credit has to wait behind everything that is queued the other way. With
/// dedicated aggregators, results have links of their own, so fewer slots are enough, and more would only
/// hold bitmaps that are sent ahead. All rings together stay within kRingBytes, as far as kLeastSlots allows,
/// and among many members within kBulkRingBytesOfMany.
std::uint32_t bulk_slots(const Members& members, bool one_network, std::uint64_t slot_bytes);
/// The same of express channels, whose rings stay within kExpressRingBytesOfMany.
std::uint64_t express_slot_bytes(const Members& members);
std::uint32_t express_slots(const Members& members, std::uint64_t slot_bytes);
/// Returns EngineConfig::ahead_bytes. Where no link separates the members, it is the size of a core's cache.
/// What was scanned is then still in cache when it is read again to be sent, and when its result is written.
/// Over links there must be enough under way to keep them busy, so it is 0: no bound.
std::uint64_t ahead_bytes(bool one_network, std::uint64_t cache_bytes);

/// Returns the size in bytes from which on a run is gathered from the user's buffer. Copying such a run would
/// cost more than its entry in the gather list.
std::uint64_t gather_from(const verbs::Costs& costs);

/// Returns true if small operations should take one hop, in which every rank sends its contribution to every
/// other one, instead of two, to an owner and back. That halves the latency, but takes N (N - 1) messages
/// instead of 2 (N - 1), and every rank sums everything. So it pays only as long as ranks are few.
bool one_hop_pays(int ranks);

/// Returns the average size of a result's runs, in bytes, from which on the result is written directly to its
/// position. Then `ranks` - 1 writes replace `ranks` copies out of messages. The largest number means that
/// this never pays.
std::uint64_t direct_from(const verbs::Costs& costs, int ranks);
/// The same where receivers at two levels are reached at different costs.
std::uint64_t direct_from(const verbs::Costs& between, int ranks_between, const verbs::Costs& within,
                          int ranks_within);

}  // namespace nzcl::engine
