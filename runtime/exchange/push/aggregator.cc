#include "runtime/exchange/push/aggregator.h"

#include "runtime/plan/tuning.h"
#include "runtime/trace/trace.h"

namespace nzcl::engine {

Aggregator::Aggregator(LaneContext& context, wire::Priority priority)
    : context_(context),
      intake_(context, priority),
      sum_(context, priority, intake_),
      tiles_(context, priority, intake_),
      results_(context, priority, intake_, sum_) {}

bool Aggregator::step() {
  bool any = results_.deliver();
  any |= intake_.receive();
  // As soon as a message is on its way, the lane posts it before more is summed.
  const std::uint32_t room = context_.outbox.room();
  while (!context_.failure && context_.outbox.room() == room) {
    IncomingSlice* slice = intake_.complete();
    if (slice == nullptr) break;
    if (!sum_.started()) {
      sum_.start(*slice);
      if (slice->layout->tiled()) tiles_.start(*slice);
      results_.start();
    }
    const std::uint64_t before = amount_summed();
    const Progress progress = sum_slice();
    any |= progress != Progress::waiting || amount_summed() != before;
    if (progress == Progress::waiting) {
      results_.flush_others();
      break;
    }
    if (progress == Progress::slice_over) {
      sum_.stop();
      intake_.finish();
    }
    if (progress == Progress::sent) break;
  }
  results_.send_messages();  // a message does not wait for a later step to become full
  intake_.return_credits();
  return any;
}

/// Sums until a part of the result is on its way, or something is missing.
Aggregator::Progress Aggregator::sum_slice() {
  const std::int64_t begin = trace::now();
  const std::uint64_t before = amount_summed();
  Progress progress;
  do {
    progress = summed() ? close_slice() : sum_some();
  } while (progress == Progress::summed);
  if (amount_summed() != before || progress != Progress::waiting)
    trace::record(trace::What::reduce, begin, sum_.slice().epoch, sum_.slice().slice);
  return progress;
}

/// Returns true if all of the slice is summed.
bool Aggregator::summed() const { return sum_.slice().layout->tiled() ? tiles_.done() : sum_.done(); }

/// The contributions to a refused operation, as far as they are here, are dropped.
Aggregator::Progress Aggregator::drop_some() {
  if (sum_.slice().layout->tiled()) return tiles_.drop() ? Progress::summed : Progress::waiting;
  return sum_.skip(sum_.result_bytes()).bytes == 0 ? Progress::waiting : Progress::summed;
}

Aggregator::Progress Aggregator::sum_some() {
  if (sum_.slice().refusal) return drop_some();
  if (sum_.slice().layout->tiled()) return sum_tile();
  if (!results_.open()) return Progress::waiting;
  if (results_.room() == 0) return results_.send() ? Progress::sent : Progress::waiting;
  const SliceSum::Step step = sum_.sum_into(results_.at(), results_.room());
  if (step.bytes == 0) return Progress::waiting;
  results_.filled(step);
  return Progress::summed;
}

/// Sums the next tile, or several empty ones, into the open section. Tiles go on their way when they make a
/// message worth its cost.
Aggregator::Progress Aggregator::sum_tile() {
  if (!tiles_.ready()) return Progress::waiting;
  const std::uint64_t at = results_.filled_bytes();
  if (!results_.open_for_tile(tiles_.bytes(at))) return at > 0 ? Progress::sent : Progress::waiting;
  const std::uint64_t first = tiles_.summed();
  const std::uint64_t bytes = tiles_.sum_into(results_.at(), at);
  results_.filled_with_tiles(first, tiles_.summed() - first, bytes);
  // The slice's last tile is sent when the slice is closed, in the same step: the ranks may send another
  // slice in its place as soon as they have it.
  if (tiles_.done() || results_.filled_bytes() < kFullMessageBytes) return Progress::summed;
  results_.send();
  return Progress::sent;
}

/// Called when all is summed, or there was nothing to sum. Sends what is left, and tells every rank that the
/// slice is complete.
Aggregator::Progress Aggregator::close_slice() {
  return results_.finish() ? Progress::slice_over : Progress::waiting;
}

/// Returns the ranks whose data the slice takes next, or waits for.
std::span<const int> Aggregator::holders() const {
  return sum_.slice().layout->tiled() ? tiles_.holders() : sum_.holders();
}

Stall Aggregator::waiting_for() const {
  Stall stall = results_.waiting_for();
  const std::string missing =
      intake_.waiting_for(sum_.started() && !summed() ? holders() : std::span<const int>());
  if (!missing.empty()) stall.known = missing;
  if (stall.known.empty() && stall.all.empty() && intake_.oldest().active)
    stall.known = describe(intake_.oldest());
  return stall;
}

}  // namespace nzcl::engine
