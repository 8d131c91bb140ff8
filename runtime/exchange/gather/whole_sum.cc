#include "runtime/exchange/gather/whole_sum.h"

#include <algorithm>

#include "runtime/trace/trace.h"

namespace nzcl::engine {

WholeSum::WholeSum(int ranks, std::uint64_t most_bytes)
    : ranks_(ranks),
      edges_(most_bytes / sizeof(std::uint64_t) + 1),
      used_(static_cast<std::size_t>(ranks)),
      sources_(static_cast<std::size_t>(ranks)),
      overflow_(most_bytes) {}

void WholeSum::sum(Operation& op, std::span<const WholeContribution> contributions) {
  const trace::Span span(trace::What::reduce, op.epoch, 0);
  reduce_ = reduce_kernel(op.type(), op.reduce_op());
  element_bytes_ = element_bytes(op.type());
  if (std::all_of(contributions.begin(), contributions.end(),
                  [](const WholeContribution& c) { return c.whole; })) {
    return sum_all(op, contributions);
  }
  unite(op, contributions);
  sum_runs(op, contributions);
  op.union_known(0);
  op.zero_absent(0);
}

/// Sums contributions that all have all blocks, so that nothing has to be walked.
void WholeSum::sum_all(Operation& op, std::span<const WholeContribution> contributions) {
  std::transform(contributions.begin(), contributions.end(), sources_.begin(),
                 [](const WholeContribution& c) { return c.stream; });
  fill_ones(op.union_bits(0), op.layout.blocks());
  write(op, 0, {sources_, op.layout.tensor_bytes()});
  op.union_known(0, op.layout.blocks());
}

void WholeSum::sum_runs(Operation& op, std::span<const WholeContribution> contributions) {
  std::fill(used_.begin(), used_.end(), 0);
  const SliceView result = op.union_slice(0);
  std::uint64_t summed = 0;
  for (RunWalk walk(result, {}, std::span(edges_).first(result.bits().size())); !walk.at_end();) {
    const Run run = run_at(walk.block(), walk.run_bytes(), contributions);
    write(op, op.output.packed ? summed : walk.offset(), run);
    summed += run.bytes;
    walk.advance(run.bytes);
  }
}

/// Notes which blocks the result has, and where runs end.
void WholeSum::unite(Operation& op, std::span<const WholeContribution> contributions) {
  const std::span<std::uint64_t> all = op.union_bits(0);
  for (std::size_t w = 0; w < all.size(); ++w) {
    std::uint64_t held = 0, edges = 0;
    for (const WholeContribution& c : contributions) {
      held |= c.bits[w];
      edges |= ends_of_runs(c.bits, w);
    }
    all[w] = held;
    edges_[w] = edges;
  }
}

/// Returns the run of `bytes` that begins at `block`, and moves its holders' streams on.
WholeSum::Run WholeSum::run_at(std::uint64_t block, std::uint64_t bytes,
                               std::span<const WholeContribution> contributions) {
  std::size_t holders = 0;
  for (std::size_t rank = 0; rank < contributions.size(); ++rank) {
    if (!test_bit(contributions[rank].bits, block)) continue;
    sources_[holders++] = contributions[rank].stream + used_[rank];
    used_[rank] += bytes;
  }
  return {std::span(sources_).first(holders), bytes};
}

/// Writes the sum of a run to `offset` of the output, as far as there is room.
void WholeSum::write(Operation& op, std::uint64_t offset, const Run& run) {
  const std::uint64_t room = op.writable(offset, run.bytes), rest = run.bytes - room;
  if (room > 0) reduce(op.output.base + offset, run.sources, room);
  if (rest == 0 || !op.keeps_overflow()) return;
  for (const std::byte*& source : run.sources) source += room;
  reduce(overflow_.data(), run.sources, rest);
  op.keep_overflow(offset + room, std::span(overflow_).first(rest));
}

void WholeSum::reduce(std::byte* to, std::span<const std::byte*> sources, std::uint64_t bytes) {
  reduce_(to, sources.data(), sources.size(), bytes / element_bytes_,
          {.ranks = ranks_, .with_zero = static_cast<int>(sources.size()) < ranks_});
}

}  // namespace nzcl::engine
