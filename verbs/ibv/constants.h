// Queue depths, batch sizes and times of the native verbs backend, and what each of them bounds.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace nzcl::verbs::ibv {

/// Writes in flight per endpoint, over all peers. A write is at most one slot (128 KiB), so this many cover
/// the bandwidth-delay product of 200 Gb/s times 1 ms. It also bounds the send half of the completion queue.
inline constexpr std::uint32_t kMaxPosted = 256;

/// Depth of the send queue of each queue pair. A smaller one would stop single peers too early; a larger one
/// would let one stalled peer use up all of kMaxPosted. Posting stops at this depth, so that the queue never
/// overflows.
inline constexpr std::uint32_t kSendDepth = 128;
static_assert(kSendDepth <= kMaxPosted);

/// Largest number of work requests that are built before they are posted. For each peer among them there is
/// one ibv_post_send and so one doorbell (on Soft-RoCE one system call).
inline constexpr std::size_t kBurst = 32;

/// In every queue pair, one write of this many asks for a completion, and so does the last write of every
/// list. A completion stands for all writes of the queue pair before it.
inline constexpr std::uint32_t kSignalEvery = 16;
static_assert(kSignalEvery <= kSendDepth / 2,
              "a full queue must hold a signalled write, or it would never empty");

/// Messages up to this size are sent inline, if the device grants it, so that the device need not fetch their
/// bytes by a second DMA read. For larger ones the copy into the queue costs more than that.
inline constexpr std::uint32_t kInlineBytes = 256;

/// Receive requests are given back in batches of this size, because each call costs a doorbell on real
/// devices.
inline constexpr std::uint32_t kRefillBatch = 64;

/// The most receive requests of an endpoint, for all of its peers, so that neither the device's limits nor
/// its memory bound the number of peers. Where more immediates may be on their way, a packet that finds no
/// request is sent again until there is one.
inline constexpr std::uint32_t kMostReceives = 4096 - kRefillBatch;

/// Receive requests for calls, the datagrams by which queue pairs are connected. Peers mostly call within the
/// first operation, and what finds no request is sent again after kFirstPause.
inline constexpr std::uint32_t kCallReceives = 256;
/// Calls that may be on their way out. More wait for the next poll().
inline constexpr std::uint32_t kCallSends = 64;
/// The pause before a word that was not answered is said again, at first and at most. It doubles each time.
inline constexpr std::chrono::milliseconds kFirstPause{20}, kLongestPause{1000};

/// Times that a packet is sent again before its queue pair fails. The largest value is 7, but that means "for
/// ever" on Soft-RoCE.
inline constexpr std::uint8_t kRetries = 6;
/// The same for packets that found no receive request at the receiver. Where there are requests for all
/// immediates that credits allow, this happens only after a bug. Otherwise the receiver has to poll first,
/// and who does not is noticed by an operation's timeout. 7 means "for ever" by definition.
inline constexpr std::uint8_t kReceiverRetries = 6, kReceiverRetriesForEver = 7;
/// The pause before such a packet is sent again: 0.96 ms (code 14 of table 45 of the InfiniBand
/// specification).
inline constexpr std::uint8_t kReceiverPause = 14;

/// The processor time for a write (building the request, and its share of a doorbell and of a completion, at
/// both ends) and for one more gather entry, in the unit of verbs::Costs. These are estimates from
/// publications on RDMA devices, because no such device was at hand: perf/results/tuning.md derives them.
inline constexpr double kWriteCost = 5 << 10, kSegmentCost = 1 << 10;

/// poll() looks for asynchronous events (port down, queue pair fatal) only once in this many calls that found
/// nothing, because that look is a system call.
inline constexpr std::uint32_t kEventCheckEvery = 1024;

}  // namespace nzcl::verbs::ibv
