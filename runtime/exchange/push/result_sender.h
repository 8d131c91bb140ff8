// The sums' way to the ranks: in messages, or written directly into every rank's output.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/channel/lane_context.h"
#include "runtime/exchange/contributions/slice_sum.h"
#include "runtime/exchange/push/result_queue.h"

namespace nzcl::engine {

class Worker;

/// Gives SliceSum memory to sum into, piece by piece, and sends each piece to all ranks when it is full.
/// Owned by the aggregator, one thread.
///
/// A slice's result takes one of two forms:
/// - In messages: a piece is a section of a message. The first one carries the union bitmap. A small message
/// takes
///   the next slices' results along, if those come within the same step.
/// - Direct, for long runs: a piece is a stretch of the tensor, which is written to its position in every
/// rank's
///   output. Where this member is a rank too it is summed in its own output. A *notice* follows: a section
///   with the union bitmap and the number of these writes.
///
/// Invariant: a result waits for one receiver's credit without keeping it, or the next ones, from the others.
class ResultSender {
 public:
  ResultSender(LaneContext& context, wire::Priority priority, const Intake& intake, SliceSum& sum);
  /// The worker of the same member, if it is one. Once, before use.
  void connect(Worker* local) { local_ = local; }

  /// The sum has started another slice: decides on its form.
  void start();
  /// Makes sure that a piece is open. False: there is no buffer for it now.
  bool open() { return piece_.open || open_piece(direct_ ? Form::direct : Form::in_message); }
  std::byte* at() { return piece_.begin + piece_.bytes; }
  std::uint64_t room() const { return piece_.room; }
  /// That much was summed to at().
  void filled(const SliceSum::Step& step);
  /// Sends the piece on its way to every rank. False: not all of its writes find room now; call again.
  bool send();
  /// Sends what is left of the slice, and that it is over. False: call again.
  bool finish();

  /// The sum has to wait. Completes the open section if results of other slices stand before it in its
  /// message, so that ranks which are ready need not wait for them.
  void flush_others() {
    if (message_) close_section();
  }
  /// The message, if there is one, is on its way from now on.
  void send_message();
  /// Hands messages to the ranks that can take them now. True if anything was.
  bool deliver();

  bool idle() const { return results_.empty(); }
  /// Ranks that do not take their results: "operation 7, ...: rank(s) 3 stopped taking results". Empty: none.
  std::string waiting_for() const;

 private:
  enum class Form : std::uint8_t { in_message, direct, notice, refusal };
  struct Piece {  // a part of the result, being filled
    bool open = false;
    Form form = Form::in_message;
    std::byte* header = nullptr;  // of the section; direct: none
    std::byte* begin = nullptr;
    std::uint64_t bytes = 0, room = 0;
    std::uint64_t stream_offset = 0;
    std::uint64_t tensor_offset = 0;            // direct: where it belongs
    std::optional<StagingPool::Index> staging;  // none: it lies in the local output
    bool with_union = false;
    std::size_t written_to = 0;  // direct: receivers that it has been written to
  };
  struct ResultMessage {  // sections of slices that are over; it never lives longer than a step
    StagingPool::Index staging = 0;
    std::uint64_t bytes = 0;
    std::uint32_t sections = 0;
    std::byte* last_header = nullptr;
    std::uint64_t epoch = 0;  // of the first section
  };

  bool fits_announcements(std::uint64_t runs) const;
  bool open_piece(Form form);
  void close_section();
  bool open_in_output(Piece& piece);
  bool open_in_staging(Piece& piece);
  bool write_direct();
  void write_direct_to(std::uint16_t rank);
  Form last_form() const;
  std::uint64_t rest_of(Form form) const;
  std::uint64_t bitmap_bytes() const;
  bool deliver_to(std::size_t receiver);
  bool deliver_local();
  void taken(std::size_t receiver, StagingPool::Index staging);

  LaneContext& context_;
  const wire::Priority priority_;
  const Intake& intake_;
  SliceSum& sum_;
  Worker* local_ = nullptr;
  const std::vector<std::uint16_t> receivers_;  // of results, beside the local worker
  bool direct_ = false;                         // the form of the current slice
  std::uint32_t direct_writes_ = 0;             // to each receiver, of the current slice
  Piece piece_;
  std::optional<ResultMessage> message_;  // the open section is its next one, if that is in the same buffer
  std::uint64_t local_at_ = 0;  // the first section that the local worker has not had of its next result
  ResultQueue results_;         // for receivers_ in their order, then for the local worker
};

}  // namespace nzcl::engine
