#include "runtime/comm/communicator/dense_two_level_sum.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/base/bitmap.h"
#include "runtime/base/divide.h"
#include "runtime/comm/lists/index_list.h"
#include "runtime/operation/slice_view.h"

namespace nzcl::comm {

DenseTwoLevelSum::DenseTwoLevelSum(Levels& levels, TwoLevelRequest request)
    : levels_(levels), request_(std::move(request)) {
  const wire::OperationRecord& r = request_.record;
  for (engine::Piece& cut : engine::cut_into_pieces(r.count, r.block_elems, element_bytes(request_.type()),
                                                    levels_.plan().columns(), levels_.least_piece_bytes()))
    pieces_.push_back({.cut = std::move(cut), .bits = {}, .failure = request_.refusal});
  pieces_left_ = pieces_.size();
  union_bits_.assign(words_for(ceil_div(r.count, r.block_elems)), 0);
}

void DenseTwoLevelSum::announce() {
  for (PieceState& piece : pieces_) {
    piece.up = levels_.steps(Level::up).add();
    if (levels_.has_column()) piece.across = levels_.steps(Level::across).add();
    piece.down = levels_.steps(Level::down).add();
  }
}

void DenseTwoLevelSum::take_list(const HostList& list) {
  const wire::OperationRecord& r = request_.record;
  const std::uint64_t blocks = ceil_div(r.count, r.block_elems);
  const IndexList indices(list.indices, blocks, list.sum_duplicates);
  indices.check_sums(list.values, r.count, r.block_elems, request_.type(), request_.op());
  request_.bitmap = indices.bitmap(blocks);
  request_.sparse = engine::InputView{.base = list.values};
  if (indices.order().empty()) return;
  sorted_values_ = indices.sorted_values(list.values, r.block_elems, request_.type(), request_.op());
  request_.sparse->base = sorted_values_.data();
}

void DenseTwoLevelSum::refuse(const Failure& failure) {
  for (PieceState& piece : pieces_) piece.failure = failure;
}

/// The pieces stay where they are, so steps may refer to them.
void DenseTwoLevelSum::begin() {
  if (request_.sparse) place_values();
  const auto self = shared_from_this();
  for (PieceState& piece : pieces_)
    levels_.steps(Level::up).ready(piece.up, [this, self, &piece] { sum_host(piece); });
}

/// Puts values that came with indices into the output, and zeros between them.
void DenseTwoLevelSum::place_values() {
  const std::uint64_t block_bytes = request_.block_bytes();
  const std::uint64_t bytes = request_.record.count * element_bytes(request_.type());
  const std::uint64_t blocks = ceil_div(request_.record.count, request_.record.block_elems);
  const std::span<const std::uint64_t> bits = request_.bitmap;
  std::byte* const output = request_.output.base;
  std::memset(output, 0, bytes);
  std::uint64_t i = 0;
  for (std::uint64_t b = next_set(bits, 0, blocks); b < blocks; b = next_set(bits, b + 1, blocks), ++i) {
    const std::uint64_t from = request_.sparse->order.empty() ? i : request_.sparse->order[i];
    std::memcpy(output + b * block_bytes, request_.sparse->base + from * block_bytes,
                std::min(block_bytes, bytes - b * block_bytes));
  }
}

std::byte* DenseTwoLevelSum::share_of(const PieceState& piece) const {
  const std::uint64_t before = levels_.has_column() ? piece.cut.before(levels_.place()) : 0;
  return request_.output.base + (piece.cut.begin + before) * element_bytes(request_.type());
}

std::uint64_t DenseTwoLevelSum::share_elements(const PieceState& piece) const {
  return piece.cut.columns[static_cast<std::size_t>(levels_.place())];
}

std::vector<std::uint64_t> DenseTwoLevelSum::counts(const engine::Piece& piece) const {
  std::vector<std::uint64_t> all = piece.columns;
  all.resize(static_cast<std::size_t>(levels_.host_ranks()), 0);
  return all;
}

/// The first step: each column gets its share of what the ranks of this host have.
void DenseTwoLevelSum::sum_host(PieceState& piece) {
  const std::vector<std::uint64_t> shares = counts(piece.cut);
  const std::uint64_t block = request_.record.block_elems;
  std::vector<std::uint64_t> bits;
  if (!request_.bitmap.empty()) {
    const std::uint64_t blocks = ceil_div(piece.cut.elements(), block);
    bits.resize(words_for(blocks));
    engine::copy_bits(bits, 0, request_.bitmap, piece.cut.begin / block, blocks);
  }
  const std::uint64_t offset = piece.cut.begin * element_bytes(request_.type());
  const CollectiveRequest request{.collective = wire::Collective::reduce_scatter,
                                  .rank = levels_.place(),
                                  .ranks = levels_.host_ranks(),
                                  .input = request_.input != nullptr ? request_.input + offset : nullptr,
                                  .output = share_of(piece),
                                  .counts = shares,
                                  .type = request_.type(),
                                  .op = request_.level_op(),
                                  .block_elems = block,
                                  .bitmap = bits,
                                  .dense = request_.dense,
                                  .timeout = request_.level_timeout(),
                                  .tag = request_.record.tag};
  levels_.start(Level::up, &request, piece.failure,
                [this, self = shared_from_this(), &piece](const std::shared_ptr<Operation>& step) {
                  if (step && !piece.failure) {
                    const auto summed = step->union_bitmap();
                    piece.bits.assign(summed.begin(), summed.end());
                    request_.count_input(*step);
                    request_.count_traffic(*step);
                  }
                  host_summed(piece);
                });
}

void DenseTwoLevelSum::host_summed(PieceState& piece) {
  if (!levels_.has_column()) return hosts_summed(piece);
  levels_.steps(Level::across).ready(piece.across, [this, self = shared_from_this(), &piece] {
    if (share_elements(piece) > 0) return sum_hosts(piece);
    hosts_summed(piece);
  });
}

/// The second step: the ranks of a column sum what their hosts have.
void DenseTwoLevelSum::sum_hosts(PieceState& piece) {
  std::byte* const share = share_of(piece);
  const AllreduceRequest request{.input = share,
                                 .output = share,
                                 .count = share_elements(piece),
                                 .type = request_.type(),
                                 .op = request_.level_op(),
                                 .block_elems = request_.record.block_elems,
                                 .bitmap = piece.bits,
                                 .timeout = request_.level_timeout(),
                                 .tag = request_.record.tag,
                                 .wire_type = WireType::as_is,
                                 .expected_density = request_.host_density(levels_.plan().most_ranks())};
  levels_.start(Level::across, &request, piece.failure,
                [this, self = shared_from_this(), &piece](const std::shared_ptr<Operation>& step) {
                  if (step && !piece.failure) {
                    const auto summed = step->union_bitmap();
                    piece.bits.assign(summed.begin(), summed.end());
                    if (request_.op() == ReduceOp::avg) divide_share(piece);
                    request_.count_traffic(*step);
                  }
                  hosts_summed(piece);
                });
}

void DenseTwoLevelSum::divide_share(const PieceState& piece) {
  const std::uint64_t block = request_.record.block_elems, elements = share_elements(piece);
  const std::uint64_t blocks = ceil_div(elements, block);
  const std::span<const std::uint64_t> bits = piece.bits;
  for (std::uint64_t b = next_set(bits, 0, blocks), end = b; b < blocks; b = next_set(bits, end, blocks)) {
    end = next_clear(bits, b, blocks);
    divide(share_of(piece) + b * request_.block_bytes(), std::min(end * block, elements) - b * block,
           request_.type(), levels_.plan().ranks());
  }
}

void DenseTwoLevelSum::hosts_summed(PieceState& piece) {
  levels_.steps(Level::down).ready(piece.down, [this, self = shared_from_this(), &piece] {
    give_to_host(piece);
  });
}

/// The third step: the ranks of this host give each other their shares.
void DenseTwoLevelSum::give_to_host(PieceState& piece) {
  const std::vector<std::uint64_t> shares = counts(piece.cut);
  const CollectiveRequest request{
      .collective = wire::Collective::allgather,
      .rank = levels_.place(),
      .ranks = levels_.host_ranks(),
      .input = share_of(piece),
      .output = request_.output.base + piece.cut.begin * element_bytes(request_.type()),
      .counts = shares,
      .type = request_.type(),
      .block_elems = request_.record.block_elems,
      .bitmap = piece.bits,
      .timeout = request_.level_timeout(),
      .tag = request_.record.tag,
      // In place, a block that no rank has is zero already, because this rank has not got it either.
      .output_has_zeros = request_.input == request_.output.base};
  levels_.start(Level::down, &request, piece.failure,
                [this, self = shared_from_this(), &piece](const std::shared_ptr<Operation>& step) {
                  if (step) request_.count_traffic(*step);
                  piece_over(piece, step.get());
                });
}

void DenseTwoLevelSum::piece_over(const PieceState& piece, Operation* last) {
  {
    const std::scoped_lock lock(mutex_);
    if (piece.failure && !failure_) failure_ = piece.failure;
    if (last != nullptr && !piece.failure) {
      const auto bits = last->union_bitmap();
      engine::copy_bits(union_bits_, piece.cut.begin / request_.record.block_elems, bits, 0,
                        last->result_blocks());
      union_blocks_ += count_bits(bits);
    }
    if (--pieces_left_ > 0) return;
  }
  request_.operation->rest_done(
      {.bits = std::move(union_bits_), .blocks = union_blocks_, .failure = failure_});
  levels_.over();
}

}  // namespace nzcl::comm
