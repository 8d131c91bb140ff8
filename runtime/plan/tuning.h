// Every constant that was chosen by measuring, or that bounds memory, time or work: one sentence each. The
// measurements behind them are kept in perf/results/tuning.md.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>

namespace nzcl::engine {

// --- Operations

/// Operations that may be in flight on a communicator; a further call waits until the oldest has finished.
inline constexpr std::uint32_t kMaxOperations = 64;

// --- Slices

/// Slices that a worker may have started with one owner at one priority and not seen complete: it bounds the
/// aggregator's bitmaps, and is enough for the next bitmaps to be there before the current slice is summed.
inline constexpr std::uint64_t kWindow = 16;
static_assert(65536 % kWindow == 0, "immediates of direct writes name a slice by its sequence modulo 2^16");
/// The window never becomes smaller than this, whatever `ahead_bytes` says, so that a slice is sent while
/// another one is summed.
inline constexpr std::uint64_t kLeastWindow = 2;
/// The window of a one-hop exchange: another rank may be that far ahead of this one, and this one of a third.
inline constexpr std::uint64_t kOneHopWindow = kWindow / 2;
/// Bitmaps that do not fit one message with their data run ahead of the data by this many slices.
inline constexpr std::uint64_t kBitmapsAhead = 2;
/// Between members of one host a tensor is cut into about this many slices for each owner, so that
/// aggregators are busy from soon after the first slice until shortly before the last one.
inline constexpr std::uint64_t kSlicesPerOwner = 32;
/// Over links a tensor is cut into at least this many slices in all: the first one leaves early, and little
/// is left to send after the last scan.
inline constexpr std::uint64_t kSlicesOverLinks = 256;
/// Slices are not cut below this where the tensor is large: sparse ones would make messages that are too
/// small.
inline constexpr std::uint64_t kLeastPipelinedSliceBytes = 128 << 10;
/// Where slices are kept small so that a worker stays within its cache, they are not cut below this: the
/// fixed cost of a slice would show.
inline constexpr std::uint64_t kLeastCachedSliceBytes = 256 << 10;
/// Slices are not larger than this, so that scanning, sending and summing overlap.
inline constexpr std::uint64_t kMaxSliceBytes = 4 << 20;
/// Every owner gets a slice of a small tensor, unless its part were smaller than this.
inline constexpr std::uint64_t kLeastSliceBytes = 32 << 10;

// --- Messages

/// A bulk message of this size is worth what it costs; a smaller one takes further slices along.
inline constexpr std::uint64_t kFullMessageBytes = 48 << 10;
/// The slices of one message cover at most this much of the tensor, as all of it is scanned before the
/// message leaves.
inline constexpr std::uint64_t kMessageCoversBytes = 2 << 20;
/// A slice weighs this many times its contribution in a worker's cache: the contribution is read again to be
/// sent, and the result of several ranks' blocks is written.
inline constexpr std::uint64_t kCacheWeight = 8;
/// Slots of the express channels: small enough that many channels cost little memory.
inline constexpr std::uint64_t kExpressSlotBytes = 8 << 10;
/// Slots of bulk channels: a page more than a power of two, so that a slice of a power of two fits with its
/// header.
inline constexpr std::uint64_t kBulkSlotBytes = 132 << 10;
/// Slots to dedicated aggregators behind links: a sum waits for a message from every worker, so smaller ones
/// keep fast workers from running far ahead of slow ones.
inline constexpr std::uint64_t kDedicatedSlotBytes = 68 << 10;

/// Direct writes of one slice to one receiver, at most, where each carries an immediate, by wire::Priority; a
/// result of more pieces goes in messages.
inline constexpr std::array<std::uint64_t, 2> kAnnouncedWrites{224, 32};
/// The same over all members: an endpoint is opened for no more of these immediates.
inline constexpr std::uint64_t kAnnouncedArrivals = 1 << 20;

// --- Memory of a lane

/// Slots of an express channel, and the least of a bulk one.
inline constexpr std::uint32_t kLeastSlots = 8;
/// Slots of a bulk channel between hosts: a credit comes back behind all that is queued the other way.
inline constexpr std::uint32_t kMostSlots = 32;
/// Slots of a bulk channel to dedicated aggregators, whose results have links of their own.
inline constexpr std::uint32_t kMostDedicatedSlots = 16;
/// A one-hop channel has this many times the slots: no results go the other way that could carry credits.
inline constexpr std::uint32_t kOneHopSlots = 4;
/// Memory that a lane's rings may take, unless kLeastSlots slots each take more.
inline constexpr std::uint64_t kRingBytes = std::uint64_t{128} << 20;
/// Staging buffers at one priority: enough to keep the transport busy while messages are composed, few enough
/// to stay in cache.
inline constexpr std::uint32_t kStagingBuffers = 16;
/// Results that an aggregator keeps in staging buffers for receivers without a credit: it bounds how far one
/// receiver falls behind before the others wait for it.
inline constexpr std::uint32_t kWaitingResults = 8;

// --- Time

/// An aggregator knows which rank is missing and a worker does not, so a worker reports a stall this much
/// later: ranks may have begun the operation that far apart.
inline constexpr std::chrono::seconds kWorkerGrace{1};
/// No operation may ask for less, so nobody looks at timeouts before.
inline constexpr std::chrono::milliseconds kShortestTimeout{1};
/// Rounds without anything between two looks at the clock, which is not free.
inline constexpr std::uint32_t kRoundsPerCheck = 32;
/// A lane's thread gives way to others for this long after it has stopped polling, and only then sleeps.
inline constexpr std::chrono::microseconds kLaneYieldTime{200};
/// Without a descriptor to sleep on, sleeping steps are the latency of a message that nobody polls for: they
/// start here,
inline constexpr std::chrono::microseconds kShortestNap{50};
/// grow with the quiet time up to this while operations run,
inline constexpr std::chrono::milliseconds kLongestNap{1};
/// and up to this while none do, so that an idle process costs little.
inline constexpr std::chrono::milliseconds kLongestIdleNap{20};
/// With a descriptor to sleep on, a sleep this long is only a safety net.
inline constexpr std::chrono::milliseconds kSafetyNap{100};
/// While a caller drives a lane, its thread looks again after this time.
inline constexpr std::chrono::microseconds kStandBack{500};
/// A waiting caller gives way to others for this long after it has stopped polling, and only then sleeps.
inline constexpr std::chrono::microseconds kCallerYieldTime{500};
/// How long writes to a peer that may be dead are waited for when a communicator ends.
inline constexpr std::chrono::milliseconds kDrainTime{500};
/// How long the other members may take to come to rest before buffers are given back regardless.
inline constexpr std::chrono::seconds kQuietTime{2};

}  // namespace nzcl::engine
