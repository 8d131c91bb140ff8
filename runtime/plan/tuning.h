// Every constant that was chosen by measuring, or that bounds memory, time or work, with the reason for it.
// The measurements are in perf/results/tuning.md.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>

namespace nzcl::engine {

// --- Operations

/// The most operations that may be in flight on a communicator. A further call waits until the oldest one has
/// finished.
inline constexpr std::uint32_t kMaxOperations = 64;

// --- Slices

/// The most slices whose contributions an owner takes from one worker at one priority and has not summed. It
/// bounds the memory for the aggregator's bitmaps, and is enough for the next bitmaps to be there before the
/// current slice has been summed.
inline constexpr std::uint64_t kWindow = 16;
static_assert(65536 % kWindow == 0, "immediates of direct writes name a slice by its sequence modulo 2^16");
/// The most slices that a worker may have started with one owner and not seen complete. It is one less,
/// because an owner may tell some ranks that a slice is over a moment before it has told all and goes on.
inline constexpr std::uint64_t kWorkerWindow = kWindow - 1;
/// The window is never smaller than this, whatever `ahead_bytes` says, so that one slice is sent while
/// another one is summed.
inline constexpr std::uint64_t kLeastWindow = 2;
/// The window of the one-hop exchange. It is half of the intake's, because another rank may be this far ahead
/// of this one, and a third one this far ahead of that one.
inline constexpr std::uint64_t kOneHopWindow = kWindow / 2;
/// The same for doubling, where ranks wait for each other in the same way.
inline constexpr std::uint64_t kDoublingWindow = kWindow / 2;
/// A bitmap that does not fit one message with its data is sent up to this many slices ahead of the data.
inline constexpr std::uint64_t kBitmapsAhead = 2;
/// Between members of one host a tensor is cut into about this many slices for each owner, so that
/// aggregators are busy from soon after the first slice until shortly before the last one.
inline constexpr std::uint64_t kSlicesPerOwner = 32;
/// Over links a tensor is cut into at least this many slices in all, so that the first one leaves early, and
/// little is left to send after the last scan.
inline constexpr std::uint64_t kSlicesOverLinks = 256;
/// Slices of a large tensor are at least this large, because a smaller slice that is sparse makes a message
/// that is too small.
inline constexpr std::uint64_t kLeastPipelinedSliceBytes = 128 << 10;
/// Where slices are kept small so that a worker stays within its cache, they are at least this large, because
/// each slice has a fixed cost.
inline constexpr std::uint64_t kLeastCachedSliceBytes = 256 << 10;
/// Slices are at most this large, so that scanning, sending and summing overlap.
inline constexpr std::uint64_t kMaxSliceBytes = 4 << 20;
/// Every owner gets a slice of a small tensor, unless the slice would be smaller than this.
inline constexpr std::uint64_t kLeastSliceBytes = 32 << 10;

// --- Tiles of single elements

/// Tensors whose blocks are smaller than this are exchanged as tiles: what is said of an element (one bit, or
/// 16) is worth less than what can be left out within a block.
inline constexpr std::uint64_t kTileBlockBytes = 64;
/// No block of a tiled tensor is larger: a tile has at least 64 of them, and at most 65,536 elements. Those
/// of more than 4 bytes are only in tiles if their blocks have fewer than kTileBlockBytes.
inline constexpr std::uint64_t kMostTiledBlockBytes = 4 * 65536 / 64;
/// A tiled tensor is cut into about this many slices for each owner. It is fewer than otherwise, because each
/// tile of a slice travels and is summed as soon as it is there, and each slice costs a header.
inline constexpr std::uint64_t kTiledSlicesPerOwner = 8;
/// Tiled slices are at most this large.
inline constexpr std::uint64_t kMaxTiledSliceBytes = 2 << 20;

/// Up to so many ranks, the index sets of a tile are kept side by side, so that all ranks' values are merged
/// in one pass.
inline constexpr std::size_t kMergeRanks = 16;
/// Up to so many ranks that hold few elements are merged list by list. With more, the elements of the first
/// ones are merged too often.
inline constexpr std::size_t kListedRanks = 4;
/// The same in elements: what all ranks hold, times the number of ranks behind the second one.
inline constexpr std::size_t kMostMergedAgain = 2048;
/// A tile is merged in one pass if ranks hold more than one in so many of its elements between them.
/// Otherwise values are added one by one.
inline constexpr std::uint64_t kMergeShare = 20;

// --- Messages

/// A bulk message of this size is worth its fixed cost. A smaller one takes further slices along.
inline constexpr std::uint64_t kFullMessageBytes = 48 << 10;
/// The slices of one message cover at most this much of the tensor, because all of it is scanned before the
/// message leaves.
inline constexpr std::uint64_t kMessageCoversBytes = 2 << 20;
/// How many times the size of its contribution a slice is assumed to take in a worker's cache. The
/// contribution is read again to be sent, and a result with the blocks of several ranks is written.
inline constexpr std::uint64_t kCacheWeight = 8;
/// Size of the slots of express channels. It is small enough that many channels cost little memory.
inline constexpr std::uint64_t kExpressSlotBytes = 8 << 10;
/// Size of the slots of bulk channels: two pages more than a power of two, so that a slice or a tile whose
/// size is a power of two fits together with its header and a bitmap of its elements.
inline constexpr std::uint64_t kBulkSlotBytes = 136 << 10;
/// Size of the slots of bulk channels to dedicated aggregators behind links. A sum waits for a message from
/// every worker, so smaller messages keep fast workers from running far ahead of slow ones.
inline constexpr std::uint64_t kDedicatedSlotBytes = 68 << 10;

/// The most direct writes of one slice to one receiver, by wire::Priority, where each carries an immediate. A
/// result of more pieces goes in messages.
inline constexpr std::array<std::uint64_t, 2> kAnnouncedWrites{224, 32};
/// The most immediates of direct writes from all members that an endpoint is opened for.
inline constexpr std::uint64_t kAnnouncedArrivals = 1 << 20;

/// Size of the slots of doubling's channels. A batch in the last round has the contributions of half of the
/// ranks. It is somewhat more than a power of two, so that a tensor whose size is one fits, with a bitmap of
/// its elements, that many times.
inline constexpr std::uint64_t kDoublingSlotBytes = 34 << 10;
/// Where a contribution may not have at least so many bytes, there is no doubling. An entry of that size has
/// room for the reason of a refusal beside the bitmap of any tensor that fits it.
inline constexpr std::uint64_t kLeastDoublingBytes = 512;

/// Doubling is chosen where it is predicted to take at most this share of push's time. Where they are about
/// equal, push has fewer bytes.
inline constexpr double kDoublingShare = 0.9;

// --- Memory of a lane

/// Number of slots of an express channel, and the fewest that a bulk channel has.
inline constexpr std::uint32_t kLeastSlots = 8;
/// The most slots of a bulk channel between hosts. So many help because a credit comes back behind everything
/// that is queued the other way.
inline constexpr std::uint32_t kMostSlots = 32;
/// The most slots of a bulk channel to a dedicated aggregator behind links. Fewer are enough, because results
/// have links of their own.
inline constexpr std::uint32_t kMostDedicatedSlots = 16;
/// A channel of the one-hop exchange has this many times the slots, because no results go the other way that
/// could carry credits.
inline constexpr std::uint32_t kOneHopSlots = 4;
/// Number of slots of a channel of doubling: enough for the operations that another rank may be ahead.
inline constexpr std::uint32_t kDoublingSlots = 16;
/// The most memory that a lane's rings take, unless kLeastSlots slots for each channel take more.
inline constexpr std::uint64_t kRingBytes = std::uint64_t{128} << 20;
/// Number of staging buffers at one priority to compose messages in: enough to keep the transport busy
/// meanwhile, and few enough to stay in cache.
inline constexpr std::uint32_t kStagingBuffers = 16;
/// One of so many lent messages is stored in the way that is not used at present (StagingWay), so that both
/// ways stay known. Where they differ by a factor of three, that costs 3 per cent.
inline constexpr std::uint32_t kStagingTrial = 64;
/// Of messages in the way that is used, one of so many is timed.
inline constexpr std::uint32_t kStagingSample = 16;
/// The bytes of a message that are read to time it. So many take longer than the clock does, and are read
/// again from the cache at once.
inline constexpr std::uint64_t kStagingSampleBytes = 4096;
/// Messages are streamed if reading a cached one takes more than this many times as long as reading a
/// streamed one, and no longer if it takes less than the second number. Where it takes nearly as long,
/// streaming is ahead already, because the writer need not fetch the lines of its buffer from the reader's
/// cache before.
inline constexpr double kStreamedFrom = 0.8, kCachedFrom = 0.6;
/// Runs that are shorter are copied through the caches even into streamed messages, because most of their
/// lines would be written in parts.
inline constexpr std::uint64_t kLeastStreamedRun = 512;
/// A sum that is not made in the message itself is made in pieces of this size, each of which is copied into
/// the message while it is in a cache.
inline constexpr std::uint64_t kSummedPieceBytes = 16 << 10;
/// A receiver may keep so many lent messages after it has read them, until it tells of more together.
inline constexpr std::uint32_t kLentUntold = 3;
/// Where results differ between receivers, each may keep others than the rest. With roots that change from
/// operation to operation these are the last three of one rank, of the root before it two others, of the one
/// before that one more, and the last three that all others got.
inline constexpr std::uint32_t kLentDifferent = 9;
/// The most results that an aggregator keeps in staging buffers for receivers without a credit. It bounds how
/// far one receiver falls behind before the others wait for it.
inline constexpr std::uint32_t kWaitingResults = 8;

// --- Time

/// A worker reports a stall this much later than an aggregator, because an aggregator knows which rank is
/// missing and a worker does not. Ranks may have begun the operation this far apart.
inline constexpr std::chrono::seconds kWorkerGrace{1};
/// The shortest timeout that an operation may ask for. Nobody looks at timeouts before this has passed.
inline constexpr std::chrono::milliseconds kShortestTimeout{1};
/// How many rounds in which nothing moved a lane makes between two looks at the clock, which take time.
inline constexpr std::uint32_t kRoundsPerCheck = 32;
/// A lane's thread gives way to others for this long after it has stopped polling, and only then sleeps.
inline constexpr std::chrono::microseconds kLaneYieldTime{200};
/// Without a file descriptor to sleep on, a sleep delays the next message. So sleeps begin this short, and
/// get longer with the quiet time.
inline constexpr std::chrono::microseconds kShortestNap{50};
/// Sleeps get no longer than this while operations run.
inline constexpr std::chrono::milliseconds kLongestNap{1};
/// Sleeps get no longer than this while no operation runs, so that an idle process costs little.
inline constexpr std::chrono::milliseconds kLongestIdleNap{20};
/// With a file descriptor to sleep on, an event ends the sleep, and this limit is only a safety net.
inline constexpr std::chrono::milliseconds kSafetyNap{100};
/// While a caller drives a lane, the lane's own thread looks again after this time.
inline constexpr std::chrono::microseconds kStandBack{500};
/// A waiting caller gives way to others for this long after it has stopped polling, and only then sleeps.
inline constexpr std::chrono::microseconds kCallerYieldTime{500};
/// When a communicator ends, it waits this long for its own writes, because their receiver may be dead.
inline constexpr std::chrono::milliseconds kDrainTime{500};
/// How long the other members may take to come to rest, before buffers are given back regardless.
inline constexpr std::chrono::seconds kQuietTime{2};

}  // namespace nzcl::engine
