#include "runtime/exchange/contributions/output_sum.h"

#include <cstring>

#include "runtime/trace/trace.h"

namespace nzcl::engine {

bool OutputSum::sum(IncomingSlice& s) {
  if (!sum_.started()) sum_.start(s);
  const std::int64_t begin = trace::now();
  const bool moved = sum_some();
  if (moved) trace::record(trace::What::reduce, begin, s.epoch, 0);
  return moved;
}

/// If a packed output is too small, nothing is written behind its end, and the operation reports that when it
/// finishes. If a rank has refused the operation, nothing is written at all.
bool OutputSum::sum_some() {
  Operation& op = *sum_.slice().local;
  bool any = false;
  while (!sum_.done()) {
    const std::uint64_t offset = op.output.packed ? sum_.summed_bytes() : sum_.tensor_offset();
    const std::uint64_t rest = sum_.result_bytes() - sum_.summed_bytes();
    const std::uint64_t room = sum_.slice().refusal ? 0 : op.writable(offset, rest);
    const bool kept = room == 0 && !sum_.slice().refusal && op.keeps_overflow();
    const SliceSum::Step step = room > 0 ? sum_.sum_into(op.output.base + offset, room)
                                : kept   ? sum_.sum_into(overflow_.data(), overflow_.size())
                                         : sum_.skip(sum_.result_bytes());
    if (step.bytes == 0) break;
    if (kept) op.keep_overflow(offset, std::span(overflow_).first(step.bytes));
    any = true;
  }
  return any;
}

void OutputSum::finish() {
  Operation& op = *sum_.slice().local;
  if (sum_.slice().refusal) {
    op.slice_refused(0, *sum_.slice().refusal);
  } else {
    const auto bits = sum_.result().bits();
    if (!bits.empty()) std::memcpy(op.union_bits(0).data(), bits.data(), bits.size_bytes());
    op.union_known(0);
    op.zero_absent(0);
  }
  sum_.stop();
  intake_.finish();
  op.slice_done();  // last, because the operation may be deleted from here on
}

}  // namespace nzcl::engine
