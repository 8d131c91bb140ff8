// From which size on a run of blocks is worth a gather entry, or a write, of its own; how many slots a
// channel is worth. Such choices shape what is sent how, never results.
#pragma once

#include <cstdint>

#include "runtime/engine/members.h"
#include "verbs/transport.h"

namespace nzcl::comm {

/// Bytes of a bulk channel's slots, which are its largest messages, if the user leaves it to nzcl. A page
/// more than a power of two, as slices are powers of two as a rule: a message's fixed part fits beside its
/// data. Dedicated aggregators behind links get small ones: a sum waits for a message of every worker, and of
/// large ones as many as credits need are more bytes than a worker should get ahead of the slowest. (4 and 4
/// at 1 Gb/s, medians of 2, 16 slots of 132 .. 68 KiB: d = 1 598 .. 592 ms, 0.1 206 .. 205, 0.01 28 .. 27; 32
/// of 68: 597; 12: 603. 4 and 2, d = 1: 1169 .. 1163; 2 and 2: 586 .. 582. 4 colocated: equal.)
std::uint64_t bulk_slot_bytes(const engine::Members& members, bool one_network);
/// Slots of a bulk channel if the user leaves it to nzcl: what may be under way to a member before its first
/// credit is back. Between members of several networks (of one host each) that credit comes behind all that
/// is queued the other way, for every rank: 16 ranks on links of 250 Mb/s reached 91 and 97 % of the bound
/// with 8 and 32 slots of 132 KiB, 8 ranks on 1 Gb/s 95.5 and 96.4 (medians of 2 to 5 rounds; d = 0.1).
/// Within one network there are no links, and what is in few slots stays in cache: 32 took 5 to
/// 18 % longer than 8. With dedicated aggregators results have links of their own, and every member one way
/// full at most: 16, as of 8 too many hold bitmaps sent ahead (4 and 4 at 1 Gb/s, d = 1, 132 KiB: 86, 96, 96
/// and 94 % of the bound with 8, 12, 16 and 32). Elsewhere: 32. Or what fits kRingBytes.
std::uint32_t bulk_slots(const engine::Members& members, bool one_network, std::uint64_t slot_bytes);
/// What a worker may have started and not seen complete (EngineConfig::ahead_bytes), from a core's cache.
/// Where the members' memory is all that is between them, what was scanned is then still in cache when it is
/// read again to be sent, and when its result is written. 64 MiB over cma (the whole window .. with this
/// bound): 4 ranks, d = 1 36.5 .. 35.3 ms, 0.4 39.1 .. 30.7, 0.1 20.4 .. 19.5, 0.01 11.8 .. 12.3; 2 ranks, d
/// = 0.4 14.9 .. 12.5; 8 ranks, d = 1 94.8 .. 87.5; 256 MiB, 4 ranks, d = 0.1 96 .. 77. Twice and half of it
/// were no better. With links, what is under way has to cover them: 0, no bound.
std::uint64_t ahead_bytes(bool one_network, std::uint64_t cache_bytes);

/// Slots of an express channel, and the least of a bulk one.
inline constexpr std::uint32_t kLeastSlots = 8;
/// Memory that a lane's rings may take, unless kLeastSlots each take more.
inline constexpr std::uint64_t kRingBytes = std::uint64_t{128} << 20;

/// Runs from this many bytes on are gathered from the user's buffer: there the copy that this saves costs
/// more than the entry.
std::uint64_t gather_from(const verbs::Costs& costs);

/// Whether small operations take one hop, every rank sending its contribution to every other, instead of two,
/// to an aggregator and back. That halves the latency, and makes ranks (ranks - 1) messages of 2 (ranks - 1):
/// worth it only as long as those are no more. (4 ranks on 2 cores, 8 B, three runs in turn: tcp 44 .. 57 us
/// in one hop, 27 .. 35 in two; cma 5.2 .. 10.3 and 5.8 .. 6.4.)
bool in_one_hop(int ranks);

/// Results whose runs average this many bytes or more are written to their places: `ranks` - 1 writes then do
/// what otherwise `ranks` copies out of messages do. The largest number: never worth it.
std::uint64_t direct_from(const verbs::Costs& costs, int ranks);

}  // namespace nzcl::comm
