// What a channel, a message or a write is worth. Such choices shape what is sent and how, never results.
#pragma once

#include <cstdint>

#include "runtime/plan/members.h"
#include "verbs/transport.h"

namespace nzcl::engine {

/// Bytes of a bulk channel's slots, which are its largest messages, if the user leaves it to nzcl.
std::uint64_t bulk_slot_bytes(const Members& members, bool one_network);
/// Slots of a bulk channel if the user leaves it to nzcl: what may be under way to a member before its first
/// credit is back. Within one host few are enough, and what lies in them stays in cache. Between hosts a
/// credit comes back behind all that is queued the other way; with dedicated aggregators results have links
/// of their own, so that fewer cover it, and more would only hold bitmaps that are sent ahead. All rings
/// together keep to kRingBytes.
std::uint32_t bulk_slots(const Members& members, bool one_network, std::uint64_t slot_bytes);
/// What a worker may have started and not seen complete (EngineConfig::ahead_bytes), from a core's cache.
/// Where only memory is between the members, what was scanned is then still in cache when it is read again to
/// be sent, and when its result is written. Where links are, what is under way has to cover them: 0, no
/// bound.
std::uint64_t ahead_bytes(bool one_network, std::uint64_t cache_bytes);

/// Runs from this many bytes on are gathered from the user's buffer: there the copy that this saves costs
/// more than the entry of the gather list.
std::uint64_t gather_from(const verbs::Costs& costs);

/// Whether small operations take one hop, every rank sending its contribution to every other, instead of two,
/// to an owner and back. That halves the latency, and makes N (N - 1) messages of 2 (N - 1), so it pays only
/// as long as those are not more.
bool one_hop_pays(int ranks);

/// Results whose runs average this many bytes or more are written to their positions: `ranks` - 1 writes then
/// do what otherwise `ranks` copies out of messages do. The largest number: that never pays.
std::uint64_t direct_from(const verbs::Costs& costs, int ranks);

}  // namespace nzcl::engine
