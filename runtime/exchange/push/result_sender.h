// Sends the sums to the ranks: in messages, or written directly into every rank's output.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/channel/lane_context.h"
#include "runtime/channel/slot_writer.h"
#include "runtime/exchange/contributions/slice_sum.h"
#include "runtime/exchange/exchange.h"
#include "runtime/exchange/push/result_queue.h"

namespace nzcl::engine {

class Worker;

/// Gives SliceSum memory to sum into, part by part, and sends each part to its receivers when it is full.
/// Owned by the aggregator and used by one thread.
///
/// The result of a tiled slice goes in messages, in sections of tiles. That of any other slice takes one of
/// two forms:
/// - In messages. A part is a section of a message, and the slice's first section carries the union bitmap.
///   A small message takes the results of the next slices along, if they are ready within the same step.
/// - Direct, where runs are long. A part is a stretch of the tensor, which is written to its position in
///   every rank's output. If this member is a rank too, the part is summed in its own output. A *notice*
///   follows the parts: a section with the union bitmap and the number of direct writes.
///
/// Where blocks are long and this member is a rank too, a part in a message is summed in the local output,
/// and copied into the message while it is in a cache, so that the local worker need not read the message.
/// Where a receiver reads lent messages faster from memory than from this core's cache (StagingWay), that
/// copy goes past the caches; without a local output the sum is made in scratch memory then.
///
/// Ranks that are no receivers of the slice get a section that says that it is over. Sections for different
/// audiences travel in different messages, of which two may be open at a time.
///
/// Invariant: a receiver without a credit delays only itself. The others get this result and the next ones
/// meanwhile, as long as no more than kWaitingResults are waiting.
class ResultSender {
 public:
  ResultSender(LaneContext& context, wire::Priority priority, const Intake& intake, SliceSum& sum);
  /// Sets the worker of the same member, which takes results without a message. Called before any other
  /// function, and only if there is such a worker.
  void connect(Worker* local) { local_ = local; }

  /// Called when the sum has started another slice. Decides on its receivers and the form of its result.
  void start();
  /// For tiled slices: opens a section unless one is open, with room for a tile of `bytes`. Returns false if
  /// no buffer is free for it now, or if the section has to be sent first.
  bool open_for_tile(std::uint64_t bytes);
  /// How many bytes of the open section's payload are filled; 0 if none is open.
  std::uint64_t filled_bytes() const { return part_.open ? part_.to.bytes() : 0; }
  /// Called when a tile, or several empty ones, of `bytes` have been written to at(). `first` is the number
  /// of the first one in the slice.
  void filled_with_tiles(std::uint64_t first, std::uint64_t tiles, std::uint64_t bytes);

  /// Opens a part unless one is open. Returns false if no buffer is free for it now.
  bool open() { return part_.open || open_part(direct_ ? Form::direct : Form::in_message); }
  /// Where the next bytes of the sum belong, and how many of them there is room for.
  std::byte* at();
  std::uint64_t room() const {
    if (part_.full) return 0;
    return part_.streamed || part_.placed ? std::min(part_.to.room(), kSummedPartBytes) : part_.to.room();
  }
  /// Called when a step of the sum has written to at().
  void filled(const SliceSum::Step& step);
  /// Sends the part to its receivers. Returns false if the outbox has no room for all of its writes now. The
  /// caller must call it again then, and it goes on where it stopped.
  bool send();
  /// Sends what is left of the slice, and tells the ranks that the slice is over. Returns false if it must be
  /// called again.
  bool finish();

  /// Called when the sum has to wait. If the open section stands in a message behind results of other slices,
  /// it is completed as it is. Then the message can leave, and results that are ready do not wait for this
  /// slice.
  void flush_others() {
    if (message_) close_section();
  }
  /// Queues the messages that are open for their receivers.
  void send_messages();
  /// Sends queued messages to the ranks that can take them now, and gives them to the local worker. Returns
  /// true if there were any. What is queued later in a step is given to the local worker in the next one,
  /// because placing it takes time, and the lane posts what goes to other ranks between the two.
  bool deliver();

  bool idle() const { return results_.empty(); }
  /// Names the ranks that do not take their results, as in "operation 7, ...: rank(s) 3 stopped taking
  /// results": as known if others go on taking theirs, and otherwise as all.
  Stall waiting_for() const;

 private:
  enum class Form : std::uint8_t { in_message, direct, notice, refusal, tiles };
  /// A part of the result that is being filled.
  struct Part {
    bool open = false;
    Form form = Form::in_message;
    std::byte* header = nullptr;  // of the section; unused in a direct part
    SlotWriter to;                // what follows the header and the bitmap; or the direct part
    bool full = false;            // a direct part that ends before its room does
    std::uint32_t tiles = 0;
    std::uint64_t stream_offset = 0;
    std::uint64_t tensor_offset = 0;            // of a direct part
    std::optional<StagingPool::Index> staging;  // none if the part lies in the local output
    bool with_union = false;
    bool streamed = false;       // summed in a cache, and stored from there past the caches into the message
    bool placed = false;         // summed in the local output, where it stays
    std::size_t written_to = 0;  // of a direct part: receivers that already have it
  };
  /// Completed sections that have not been queued yet. It never lives longer than a step.
  struct ResultMessage {
    StagingPool::Index staging = 0;
    std::uint64_t bytes = 0;
    std::uint32_t sections = 0;
    std::byte* last_header = nullptr;
    std::uint64_t epoch = 0;  // of the first section
    wire::Audience audience = {};
    bool placed = false;  // the local worker's part of all sections is in its output
  };

  bool fits_announcements(std::uint64_t runs) const;
  bool open_part(Form form, std::uint64_t tile_bytes = 0);
  void close_section();
  bool open_in_output(Part& part);
  bool open_in_staging(Part& part, std::uint64_t rest);
  void fill(std::uint64_t bytes);
  void fail_without_room();
  bool begin_in(std::byte* buffer, std::uint64_t begin, Part& part, std::uint64_t rest);
  bool worth_streaming() const;
  bool has_long_runs() const;
  bool may_open_message(const std::optional<ResultMessage>& other) const;
  void queue(std::optional<ResultMessage>& message);
  bool tell_others();
  bool local_receives() const { return local_ != nullptr && audience_.has(context_.self()); }
  bool write_direct();
  void write_direct_to(std::uint16_t rank);
  Form last_form() const;
  std::uint64_t rest_of(Form form) const;
  std::uint64_t bitmap_bytes() const;
  bool deliver_to_others();
  bool deliver_to(std::size_t receiver);
  bool deliver_local();
  void taken(std::size_t receiver, StagingPool::Index staging);

  LaneContext& context_;
  const wire::Priority priority_;
  const Intake& intake_;
  SliceSum& sum_;
  Worker* local_ = nullptr;
  const std::vector<std::uint16_t> receivers_;  // ranks that get results, without this member
  // Of the current slice: who receives its result, whether it is written directly, and whether its last
  // section has been put into a message.
  wire::Audience audience_;
  bool direct_ = false, streamed_ = false, result_sent_ = false;
  std::uint32_t direct_writes_ = 0;  // of the current slice, to each receiver
  Part part_;
  const std::byte* filling_ = nullptr;          // what at() returned last
  const std::unique_ptr<std::byte[]> scratch_;  // of kSummedPartBytes, where nothing is placed
  std::optional<ResultMessage> message_;        // an open section is composed behind those that it has
  std::optional<ResultMessage> over_;           // sections for ranks that are no receivers
  /// How far the local worker has got in its next result: the offset of the first section that it has not
  /// taken.
  std::uint64_t local_at_ = 0;
  ResultQueue results_;  // receivers are numbered as in receivers_; the local worker is the last
};

}  // namespace nzcl::engine
