// Every constant of plan and of the layers above it that was chosen by measuring, or that bounds memory, time
// or work, with the reason for it. The measurements are in perf/results/tuning.md. Constants of kernels,
// compressors and placement stand in their own files, because these layers lie below plan and may not include
// it. Constants of the bytes on the wire are in runtime/wire.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace nzcl::engine {

// --- Operations

/// The most operations that may be in flight on a communicator. A further call waits until the oldest one has
/// finished.
inline constexpr std::uint32_t kMaxOperations = 64;
/// The destroyed handles of registered memory that are remembered, so that the error for a request on their
/// memory can say what happened to it.
inline constexpr std::ptrdiff_t kRememberedHandles = 64;
/// The fewest values of a compressed gradient for which memory is registered. What is registered doubles from
/// there as gradients need more, so that few steps register anything.
inline constexpr std::size_t kLeastRegisteredValues = 1024;

// --- Slices

/// The most slices whose contributions an owner takes from one worker at one priority and has not summed. It
/// bounds the memory for the aggregator's bitmaps, and is enough for the next bitmaps to be there before the
/// current slice has been summed.
inline constexpr std::uint64_t kWindow = 16;
static_assert(65536 % kWindow == 0, "immediates of direct writes name a slice by its sequence modulo 2^16");
/// The most slices that a worker may have started with one owner and not seen complete. It is one less,
/// because an owner may tell some ranks that a slice is over a moment before it has told all and goes on.
inline constexpr std::uint64_t kWorkerWindow = kWindow - 1;
/// The same among many members (kManyRings), where a worker has much under way with all owners together.
inline constexpr std::uint64_t kWorkerWindowOfMany = 3;
/// The window is never smaller than this, whatever `ahead_bytes` says, so that one slice is sent while
/// another one is summed.
inline constexpr std::uint64_t kLeastWindow = 2;
/// The most operations that a rank has begun to gather and not summed. Each keeps a staging buffer, and the
/// messages of doubling need others beside these.
inline constexpr std::uint64_t kGatherWindow = 8;
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
/// The most workers among whom that holds. An owner gets a slice from every worker at once, so among more of
/// them slices may be smaller by as much, down to the second number, which is worth a message.
inline constexpr int kFewWorkers = 8;
inline constexpr std::uint64_t kLeastSliceBytesOfMany = 1 << 10;

// --- Tiles

/// Tensors whose blocks are smaller than this are exchanged as tiles. Larger blocks are exchanged as a bitmap
/// and a stream, which can leave from the caller's memory and be written directly to their places, but costs
/// more for each run of blocks. A multiple of the size of every type, so that the bound is the same number of
/// bytes for all.
inline constexpr std::uint64_t kTileBlockBytes = 512;
/// No block of a tiled tensor is larger than this, because a tile has at least 64 blocks and at most 65,536
/// elements of 4 bytes. Elements of more than 4 bytes are only in tiles if their blocks are smaller than
/// kTileBlockBytes.
inline constexpr std::uint64_t kMostTiledBlockBytes = 4 * 65536 / 64;
/// A tiled tensor is cut into about this many slices for each owner. It is fewer than otherwise, because each
/// tile of a slice travels and is summed as soon as it is there, and each slice costs a header. Where the
/// result is packed it is fewer still, if slices would have less than a full message.
inline constexpr std::uint64_t kTiledSlicesPerOwner = 8;
/// A tensor whose contributions are coded is cut into this many slices for each owner. Header and record of
/// a slice would be a large part of what it sends otherwise.
inline constexpr std::uint64_t kCodedSlicesPerOwner = 1;
/// Tiled slices are at most this large, unless the result is packed.
inline constexpr std::uint64_t kMaxTiledSliceBytes = 2 << 20;
/// The most slices for each owner of a tensor whose result is packed, where blocks are too large for tiles,
/// or where there are links. Each slice is announced, summed and answered although it may be empty, so that
/// their number must not grow with the tensor. Larger slices make owners wait for one another, because a
/// slice's place in a packed result depends on all slices before it.
inline constexpr std::uint64_t kMostPackedSlicesPerOwner = 32;

/// The first bytes of a packed result, and of its indices, are stored through the caches, and the rest past
/// them. So a small result is where its reader finds it, and a large one drives nothing else out of a cache.
inline constexpr std::uint64_t kCachedOutputBytes = 256 << 10;

/// With at most this many ranks, an aggregator keeps the index sets of all ranks' parts of a tile decoded at
/// the same time, so that the values of all ranks can be merged in one pass. It bounds the memory for that.
inline constexpr std::size_t kMergeRanks = 16;
/// Parts that have few elements are merged list by list if there are at most this many ranks. Each further
/// list is merged with all that were merged before, so with more ranks this takes too long.
inline constexpr std::size_t kListedRanks = 4;
/// The bound of that repeated work: the number of elements in all lists, times the number of ranks beyond
/// two. A tile with more is summed in an accumulator instead.
inline constexpr std::size_t kMostMergedAgain = 2048;
/// Tiles in a row are written and summed as lists, all of them at once, if merging the lists of all ranks one
/// after the other takes at most one step for this many of the tiles' units.
inline constexpr std::uint64_t kUnitsPerListStep = 8;
/// The same for a packed result, which is a list as it comes out of the merge, where bits would have to be
/// listed.
inline constexpr std::uint64_t kUnitsPerPackedStep = 2;
/// The tiles of a caller's stream are found by a directory with an entry for every so many units, because
/// searching that many takes less than making an entry for each of thousands of tiles that hold a few units
/// each.
inline constexpr std::size_t kUnitsWorthTile = 512;
/// Returns the steps of merging the lists of so many ranks, if each has one unit. The list of one rank
/// alone counts as two, because it is read and written too.
constexpr std::uint64_t list_steps(std::uint64_t ranks) {
  return ranks < 2 ? 2 : ranks * (ranks + 1) / 2 - 1;
}

/// All ranks' parts of a tile are merged word by word, in one pass over the tile, if together they have more
/// than one in this many of its elements. With fewer, most words of the pass would be empty, so the values
/// are added one by one.
inline constexpr std::uint64_t kMergeShare = 20;
/// An accumulated sum with less than one in this many of the tile's elements is read by a list of them
/// instead of word by word.
inline constexpr std::size_t kListedShare = 24;

/// Where bytes cost little, as within a host, a shorter index code that takes long to read is used only if it
/// has less than one in this many of the bytes.
inline constexpr std::uint64_t kWorthReading = 4;
/// Where bytes cost little, no shorter code is looked for if the index set has fewer bytes than this.
inline constexpr std::uint64_t kFewIndexBytes = 1024;

/// A tile with less than one unit for this many of its elements is written into a dense output unit by unit,
/// if the zeros between them are there already. Denser ones are faster written as a whole.
inline constexpr std::size_t kFewElements = 16;

// --- Messages

/// A bulk message of this size is worth its fixed cost. A smaller one takes the next slices along.
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
/// Size of the slots of bulk channels between members of one host, as long as the rings of all of them stay
/// within kRingBytes: a tile of as many elements as there may be, each of 4 bytes, fits with its header and a
/// bitmap. Reading, coding and summing a tile has a fixed cost, which few large tiles have less often.
inline constexpr std::uint64_t kHostSlotBytes = 272 << 10;
/// Size of the slots of bulk channels to dedicated aggregators behind links. A sum waits for a message from
/// every worker, so smaller messages keep fast workers from running far ahead of slow ones.
inline constexpr std::uint64_t kDedicatedSlotBytes = 68 << 10;

/// The most writes that wait in a lane's outbox for the transport to take them.
inline constexpr std::uint32_t kOutboxWrites = 512;
/// The most direct writes of one slice to one receiver, by wire::Priority, where each carries an immediate. A
/// result of more pieces goes in messages.
inline constexpr std::array<std::uint64_t, 2> kAnnouncedWrites{224, 32};
/// The most immediates of direct writes from all members that an endpoint is opened for.
inline constexpr std::uint64_t kAnnouncedArrivals = 1 << 20;

/// Size of the slots of doubling's channels. A batch in the last round has the contributions of half of the
/// ranks. It is somewhat more than a power of two, so that a tensor whose size is one fits, with a bitmap of
/// its elements, that many times.
inline constexpr std::uint64_t kDoublingSlotBytes = 34 << 10;
/// With room of at least this size for each contribution of a batch, every one has room for the reason of a
/// refusal beside the bitmap of any tensor that fits it. With more ranks there is room for two reasons in a
/// batch, that of its sender and the one that is passed on.
inline constexpr std::uint64_t kLeastDoublingBytes = 512;
/// Among many ranks slots have room for contributions of this size with what they have beside: a few elements
/// and a bitmap.
inline constexpr std::uint64_t kDoublingEntryOfMany = 48;

/// Doubling is chosen where it is predicted to take less than this share of push's time. Where they are about
/// equal, push has fewer bytes, but not among two ranks.
constexpr double doubling_share(int ranks) { return ranks > 2 ? 0.9 : 1; }
/// The same for a sum in two levels, whose steps pass from thread to thread.
inline constexpr double kHierarchyShare = 0.9;
/// A sum in two levels works on the first level of a piece while the one before is on the second: on at most
/// so many pieces, of at least so many bytes. Each takes three operations, so small ones cost too much.
inline constexpr std::uint64_t kMostPieces = 8, kLeastPieceBytes = 2 << 20;
/// The same for merging, which has fewer hops and more to add.
inline constexpr double kMergingShare = 0.9;

/// The most messages of partial sums to one rank that wait until they have been merged here as well, or for a
/// slot there. So many keep both ranks busy while messages are on their way.
inline constexpr std::uint32_t kMergingKept = 4;
/// Number of slots of a channel of merging.
inline constexpr std::uint32_t kMergingSlots = 8;
/// The same among many ranks (kManyRings), and the size of these slots: a tile of 64 blocks of 1 KiB fits.
inline constexpr std::uint32_t kMergingSlotsOfMany = 4;
inline constexpr std::uint64_t kMergingSlotBytesOfMany = 68 << 10;

// --- Memory of a lane

/// Number of slots of an express channel, and the fewest that a bulk channel has where members are not many.
inline constexpr std::uint32_t kLeastSlots = 8;
/// The most slots of a bulk channel between hosts. So many are useful because a credit comes back only behind
/// everything that is queued the other way.
inline constexpr std::uint32_t kMostSlots = 32;
/// The most slots of a bulk channel to a dedicated aggregator behind links. Fewer are enough, because results
/// have links of their own.
inline constexpr std::uint32_t kMostDedicatedSlots = 16;
/// The most ranks that take one hop. With two ranks on each core, which is the worst case, it is up to here
/// ahead of two hops or level with them at all sizes.
inline constexpr int kMostOneHopRanks = 4;
/// A channel of one hop has this many times the slots, because no results go the other way that
/// could carry credits.
inline constexpr std::uint32_t kOneHopSlots = 4;
/// Number of slots of a channel of doubling: enough for the operations by which another rank may be ahead.
inline constexpr std::uint32_t kDoublingSlots = 16;
/// The same among many ranks (kManyRings), whose slots are large.
inline constexpr std::uint32_t kDoublingSlotsOfMany = 4;
/// The most memory that a lane's rings take, unless kLeastSlots slots for each channel take more.
inline constexpr std::uint64_t kRingBytes = std::uint64_t{128} << 20;
/// With more bulk rings than those of 64 ranks a member is one of *many*: channels get fewer slots than
/// kLeastSlots, and then smaller ones, so that what a rank keeps does not grow with their number.
inline constexpr std::uint64_t kManyRings = 2 * (64 - 1);
/// The most memory that a lane's bulk rings take among many members, and its express rings. The second has
/// room for two slots for each of 1,024 ranks.
inline constexpr std::uint64_t kBulkRingBytesOfMany = std::uint64_t{80} << 20;
inline constexpr std::uint64_t kExpressRingBytesOfMany = std::uint64_t{34} << 20;
/// The fewest slots of a channel among many members. With two bulk slots, one is filled while the other one
/// is summed. An express message rarely follows another one to the same member, because owners take turns.
inline constexpr std::uint32_t kFewestBulkSlots = 2, kFewestExpressSlots = 1;
/// How many slots bulk channels have among many members as long as these are not smaller than
/// kLeastSlotBytes. With three, a credit is worth a write of its own only when two are released. So a small
/// tensor, of which a member gets one message, needs none at once.
inline constexpr std::uint32_t kBulkSlotsOfMany = 3;
/// No slot is smaller than this, whatever that takes.
inline constexpr std::uint64_t kLeastSlotBytes = 4 << 10;
/// Number of staging buffers at one priority to compose messages in: enough to keep the transport busy
/// meanwhile, and few enough to stay in cache.
inline constexpr std::uint32_t kStagingBuffers = 16;
static_assert(kStagingBuffers > kGatherWindow);
/// One of this many lent messages is stored in the way that is not used at present (StagingWay), so that the
/// times of both ways stay known. If the ways differ by a factor of three, that costs 3 per cent.
inline constexpr std::uint32_t kStagingTrial = 64;
/// One of this many messages that are stored in the way that is used is timed.
inline constexpr std::uint32_t kStagingSample = 16;
/// To time a message, this many of its bytes are read. That takes much longer than reading the clock, and is
/// no waste, because the bytes are read again directly afterwards, from the cache.
inline constexpr std::uint64_t kStagingSampleBytes = 4096;
/// The mean time to read is over about this many samples.
inline constexpr double kStagingMeanSamples = 4;
/// A sample counts as at most this many times the mean, because the thread may have been interrupted within
/// it.
inline constexpr double kMostOfStagingMean = 4;
/// The time to read a cached message, divided by the time to read a streamed one: above the first number
/// messages are streamed from then on, and below the second one cached. Both are below 1, because streaming
/// also spares the writer the fetching of its buffer's lines from the reader's cache.
inline constexpr double kStreamedFrom = 0.8, kCachedFrom = 0.6;
/// Runs that are shorter than this are copied through the caches even into streamed messages. Many of the
/// lines of a short run are written only in part, which is slow past the caches.
inline constexpr std::uint64_t kLeastStreamedRun = 512;
/// A result is placed past the caches if the tensor has at least this many bytes and its place holds nothing
/// that this rank has read. No cache would keep it until the operation is over, and through a cache each of
/// its lines is fetched only to be overwritten.
inline constexpr std::uint64_t kLeastStreamedOutput = 32 << 20;
/// Shorter runs of such a result are placed through the caches, because of the lines that they share and
/// because each run has to wait for its stores.
inline constexpr std::uint64_t kLeastStreamedPlace = 4 << 10;
/// A sum that is not made in the message itself is made in parts of this size, each of which is copied into
/// the message while it is in a cache.
inline constexpr std::uint64_t kSummedPartBytes = 16 << 10;
/// A receiver returns lent messages to their sender in groups. So many that it has read may still be untold.
inline constexpr std::uint32_t kLentUntold = 3;
/// How many staging buffers receivers may keep together where results differ between them, because each
/// receiver may then keep other messages than the rest. The worst case is a root that changes from operation
/// to operation: the present root keeps the last three, the root before it two others, the one before that
/// another one, and the ranks that were no root the last three that they got.
inline constexpr std::uint32_t kLentDifferent = 9;
/// The most results that an aggregator keeps in staging buffers for receivers without a credit. It bounds how
/// far one receiver falls behind before the others wait for it.
inline constexpr std::uint32_t kWaitingResults = 8;

// --- Time

/// A worker reports a stall this much later than an aggregator, because an aggregator knows which rank is
/// missing and a worker does not. It also covers that ranks begin an operation at different times.
inline constexpr std::chrono::seconds kWorkerGrace{1};
/// The shortest timeout that an operation may ask for. Nobody looks at timeouts before this has passed.
inline constexpr std::chrono::milliseconds kShortestTimeout{1};
/// How many rounds in which nothing moved a lane makes between two looks at the clock, which take time.
inline constexpr std::uint32_t kRoundsPerCheck = 32;
/// A lane's thread gives way to others for this long after it has stopped polling, and only then sleeps.
inline constexpr std::chrono::microseconds kLaneYieldTime{200};
/// The same where an event ends the sleep. Giving way takes processor time, which the other ranks of the host
/// may need.
inline constexpr std::chrono::microseconds kLaneYieldTimeBeforeEvents{20};
/// Without a file descriptor to sleep on, a sleep delays the next message. So sleeps begin this short, and
/// get longer with the quiet time.
inline constexpr std::chrono::microseconds kShortestNap{50};
/// Sleeps get no longer than this while operations run.
inline constexpr std::chrono::milliseconds kLongestNap{1};
/// Sleeps get no longer than this while no operation runs, so that an idle process costs little.
inline constexpr std::chrono::milliseconds kLongestIdleNap{20};
/// With a file descriptor to sleep on, whoever has something for a lane ends its sleep. While operations run
/// it wakes up this often all the same, to see whether one of them has timed out.
inline constexpr std::chrono::milliseconds kTimeoutNap{100};
/// While no operation runs it wakes up this often, to release memory of operations that could not be released
/// at their end because another thread was at it.
inline constexpr std::chrono::seconds kSafetyNap{2};
/// While a caller drives a lane, the lane's own thread looks again after this time.
inline constexpr std::chrono::microseconds kStandBack{500};
/// A waiting caller gives way to others for this long after it has stopped polling, and only then sleeps.
inline constexpr std::chrono::microseconds kCallerYieldTime{500};
/// A caller's yield has lent the core to another thread if it takes at least kLentCoreTime, and at least
/// kLentCoreYields times as long as a yield that returns at once.
inline constexpr std::chrono::microseconds kLentCoreTime{1};
inline constexpr int kLentCoreYields = 3;
/// After this many yields that lent the core, a caller that should have a core of its own sleeps once.
inline constexpr std::uint32_t kYieldsPerNap = 128;
/// When a communicator ends, it waits this long for its own writes, because their receiver may be dead.
inline constexpr std::chrono::milliseconds kDrainTime{500};
/// How long the other members may take to come to rest, before buffers are given back regardless.
inline constexpr std::chrono::seconds kQuietTime{2};
/// How long a thread may take to come back from the transport at the end, before it is taken for stuck: the
/// transport may wait for a lock that a killed process holds.
inline constexpr std::chrono::seconds kStuckTime{5};

// --- Predicted costs, by which an exchange is chosen (exchange_cost.h). They are round figures, and the same
// on all ranks, because these must come to the same choice. Times are in seconds.

/// What sending costs over one kind of link.
struct LinkCosts {
  /// From the post of a small message until its receiver has noticed it.
  double latency = 0;
  double message = 0;  // processor time of one message at both ends together
  /// What one message takes in addition where ranks share cores, because the receiver has to be woken or to
  /// wait for its turn.
  double turn = 0;
  double wire_byte = 0;   // a byte on a rank's link; 0 within a host. It follows from the link's speed
  double moved_byte = 0;  // processor time of a byte at both ends together
};
/// The rate of links of which no member knows it, in Gb/s.
inline constexpr double kAssumedGbps = 10;
/// Transports that share memory.
inline constexpr LinkCosts kHostCosts{
    .latency = 0.7e-6, .message = 0.7e-6, .turn = 5e-6, .moved_byte = 0.08e-9};
/// The kernel's sockets, and their latency if no network link separates the members.
inline constexpr LinkCosts kSocketCosts{
    .latency = 15e-6, .message = 6e-6, .turn = 15e-6, .moved_byte = 0.4e-9};
inline constexpr double kLocalSocketLatency = 6e-6;
/// RDMA devices, and transports of which nothing is known.
inline constexpr LinkCosts kRdmaCosts{.latency = 2e-6, .message = 0.4e-6, .turn = 5e-6, .moved_byte = 0.1e-9};
/// How much longer the operations of a hierarchy's own communicators may stand still than the caller's.
inline constexpr std::chrono::seconds kLevelGrace{2};
/// The most memory of its GPU that a rank keeps for what the host's other GPUs read. What finds no room there
/// is summed on the host.
inline constexpr std::uint64_t kMostPeerBytes = std::uint64_t{2} << 30;
/// What each of the three operations of a piece of a sum in two levels takes beside its messages: to be
/// started by a thread that the one before has woken.
inline constexpr double kPieceStep = 40e-6;
/// The fixed part of a message, in bytes.
inline constexpr double kPredictedHeader = 128;
/// Processor time of one byte that is read to find what is not zero, of one byte that is added to a sum, of
/// one block of a tile that is coded or decoded, and of one that is merged.
inline constexpr double kScannedByte = 0.065e-9, kSummedByte = 0.05e-9, kTiledBlock = 1.5e-9,
                        kMergedBlock = 2.2e-9;
/// Processor time of one contribution that is gathered: it is checked, passed on, and summed.
inline constexpr double kGatheredContribution = 30e-9;

}  // namespace nzcl::engine
