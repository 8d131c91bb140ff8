// Depths and times of the native verbs backend, and what each bounds.
#pragma once

#include <cstddef>
#include <cstdint>

namespace nzcl::verbs::ibv {

/// Writes in flight per endpoint, over all peers. A write is at most a slot (128 KiB): this many cover the
/// bandwidth-delay product of 200 Gb/s times 1 ms, and bound the send half of the completion queue.
inline constexpr std::uint32_t kMaxPosted = 256;

/// Send queue depth per queue pair. With fewer, a stalled peer holds back less of the endpoint; with more, a
/// single peer could use up all of kMaxPosted. Posting stops here, so the queue never overflows.
inline constexpr std::uint32_t kSendDepth = 128;
static_assert(kSendDepth <= kMaxPosted);

/// Work requests per list: one ibv_post_send, so one doorbell (on Soft-RoCE one system call), for each peer
/// among them.
inline constexpr std::size_t kBurst = 32;

/// Every so many writes of a queue pair ask for a completion, and the last of every list: a completion stands
/// for all before it.
inline constexpr std::uint32_t kSignalEvery = 16;
static_assert(kSignalEvery <= kSendDepth / 2,
              "a full queue must hold a signalled write, or it would never empty");

/// Messages up to this size go inline, if the device grants it: their bytes need no second fetch. Above, the
/// copy into the queue costs more.
inline constexpr std::uint32_t kInlineBytes = 256;

/// Receive requests are given back in batches: one call, and on real devices one doorbell, for as many
/// immediates.
inline constexpr std::uint32_t kRefillBatch = 64;

/// Retries of a packet before its queue pair fails. 7 would be the most, but means "for ever" on Soft-RoCE.
inline constexpr std::uint8_t kRetries = 6;
/// The same where the receiver had no receive request. Credits see to it that there always is one; 7 means
/// "for ever" by definition.
inline constexpr std::uint8_t kReceiverRetries = 6;
/// Between those: 0.96 ms (code 14 of InfiniBand's table 45).
inline constexpr std::uint8_t kReceiverPause = 14;

/// The processors' part of a write (building the request, its share of a doorbell and of a completion, at
/// both ends) and of one more gather entry, in bytes copied (verbs::Costs): half a microsecond and a tenth of
/// one, where 10 GB/s are copied. Of the size that publications on RDMA devices report; no such device was at
/// hand, and Soft-RoCE takes far more.
inline constexpr double kWriteCost = 5 << 10, kSegmentCost = 1 << 10;

/// poll() looks for asynchronous events (port down, queue pair fatal) once in so many calls that found
/// nothing: it is a system call.
inline constexpr std::uint32_t kEventCheckEvery = 1024;

}  // namespace nzcl::verbs::ibv
