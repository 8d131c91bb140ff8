#include "runtime/comm/communicator/hierarchy.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "nzcl/error.h"
#include "runtime/base/bitmap.h"
#include "runtime/base/log.h"
#include "runtime/base/plain_floats.h"
#include "runtime/base/start_thread.h"
#include "runtime/comm/communicator/communicator_core.h"
#include "runtime/kernels/reduce.h"
#include "runtime/placement/threads.h"
#include "runtime/plan/tuning.h"

namespace nzcl::comm {

using engine::Operation;

namespace {

DataType type_of(const TwoLevelSum& sum) { return static_cast<DataType>(sum.record.type); }

/// An average is divided once, when all hosts are in the sum.
ReduceOp level_op(const TwoLevelSum& sum) {
  const auto op = static_cast<ReduceOp>(sum.record.op);
  return op == ReduceOp::avg ? ReduceOp::sum : op;
}

/// The caller's own communicator knows best whom an operation waits for, so it gets to say so first.
std::chrono::nanoseconds level_timeout(const TwoLevelSum& sum) {
  constexpr std::chrono::nanoseconds kLongest = std::chrono::hours(24);
  return std::min<std::chrono::nanoseconds>(sum.timeout + engine::kLevelGrace, kLongest);
}

/// Divides the blocks whose bits are set.
void divide(std::byte* share, std::uint64_t elements, const TwoLevelSum& sum,
            std::span<const std::uint64_t> bits, int ranks) {
  const std::size_t element = element_bytes(type_of(sum));
  const ReduceFn average = reduce_kernel(type_of(sum), ReduceOp::avg);
  const std::uint64_t block = sum.record.block_elems, blocks = elements / block + (elements % block != 0);
  for (std::uint64_t b = next_set(bits, 0, blocks), end = b; b < blocks; b = next_set(bits, end, blocks)) {
    end = next_clear(bits, b, blocks);
    std::byte* const at = share + b * block * element;
    const std::byte* const source = at;
    average(at, &source, 1, std::min(end * block, elements) - b * block,
            {.ranks = ranks, .with_zero = false});
  }
}

}  // namespace

void place_values(TwoLevelSum& sum) {
  const std::uint64_t block_bytes = sum.record.block_elems * element_bytes(type_of(sum));
  const std::uint64_t bytes = sum.record.count * element_bytes(type_of(sum));
  const std::uint64_t blocks = bytes / block_bytes + (bytes % block_bytes != 0);
  std::memset(sum.output, 0, bytes);
  std::uint64_t i = 0;
  for (std::uint64_t b = next_set(sum.bitmap, 0, blocks); b < blocks;
       b = next_set(sum.bitmap, b + 1, blocks)) {
    const std::uint64_t from = sum.sparse.order.empty() ? i : sum.sparse.order[i];
    std::memcpy(sum.output + b * block_bytes, sum.sparse.base + from * block_bytes,
                std::min(block_bytes, bytes - b * block_bytes));
    ++i;
  }
}

Hierarchy::Hierarchy(engine::HierarchyPlan plan, Parent parent)
    : plan_(std::move(plan)), parent_(std::move(parent)), place_(plan_.place_of(parent_.rank)) {}

Hierarchy::~Hierarchy() {
  if (maker_.joinable()) maker_.join();
}

std::string Hierarchy::describe() const {
  return fmt::format(", {} hosts for sums in two levels with {} column(s)", plan_.hosts(), plan_.columns());
}

// --- Its communicators

void Hierarchy::make() {
  placement::name_thread("nzcl-levels");
  const PlainFloats floats;  // plans must come out alike on all ranks
  try {
    make_levels();
  } catch (const std::exception& e) {
    const auto* const error = dynamic_cast<const Error*>(&e);
    const Failure failure{error != nullptr ? error->code() : ErrorCode::system, e.what()};
    {
      const std::scoped_lock lock(mutex_);
      if (!failure_) failure_ = failure;
    }
    parent_.fail(failure);
  }
  for (Level* const level : {&up_, &across_, &down_}) level->steps.open();
}

void Hierarchy::make_levels() {
  const auto begun = verbs::Clock::now();
  const int host = plan_.host_of(parent_.rank);
  const auto join = [&](Level& level, std::vector<int> ranks, int number, std::string_view name) {
    const auto workers = static_cast<int>(ranks.size());
    auto core = parent_.join({.color = number, .members = std::move(ranks), .workers = workers},
                             fmt::format("level {} {}", name, number));
    const std::scoped_lock lock(mutex_);
    if (failure_) {
      core->abort(*failure_);
      throw Error(failure_->code, failure_->text);
    }
    level.core = std::move(core);
  };
  join(up_, plan_.ranks_of(host), host, "up");
  if (has_column()) join(across_, plan_.ranks_of_column(place_), place_, "across");
  join(down_, plan_.ranks_of(host), host, "down");
  log().info("rank {}: made communicators for sums in two levels in {:.3f} s", parent_.rank,
             std::chrono::duration<double>(verbs::Clock::now() - begun).count());
}

std::optional<Failure> Hierarchy::why_not_made() const {
  const std::scoped_lock lock(mutex_);
  return failure_;
}

// --- Operations

void Hierarchy::add(const Sum& sum, const std::optional<Failure>& failure) {
  {
    const std::scoped_lock lock(mutex_);
    if (!maker_.joinable())
      maker_ = start_thread("nzcl-levels", [this] { return std::thread([this] { make(); }); });
  }
  for (engine::Piece& cut : engine::cut_into_pieces(sum->record.count, sum->record.block_elems,
                                                    element_bytes(type_of(*sum)), plan_.columns())) {
    TwoLevelSum::PieceState piece;
    piece.cut = std::move(cut);
    piece.up = up_.steps.add();
    if (has_column()) piece.across = across_.steps.add();
    piece.down = down_.steps.add();
    piece.failure = failure;
    sum->pieces.push_back(std::move(piece));
  }
  sum->pieces_left = sum->pieces.size();
  sum->union_bits.assign(words_for(sum->operation->layout.blocks()), 0);
  const std::scoped_lock lock(mutex_);
  ++under_way_;
}

void Hierarchy::begin(const Sum& sum) {
  for (std::size_t i = 0; i < sum->pieces.size(); ++i)
    up_.steps.ready(sum->pieces[i].up, [this, sum, i] { sum_host(sum, i); });
}

/// Starts a step of a piece, or takes its place in the order of the level's operations if the piece has
/// failed, and calls `next` when it is over: with its operation, or with nullptr if there was none.
void Hierarchy::start(Level& level, const Sum& sum, std::size_t piece, const Request& request, Next next) {
  const PlainFloats floats;
  std::optional<Failure>& failure = sum->pieces[piece].failure;
  try {
    if (!level.core) {
      const Failure made = why_not_made().value_or(Failure{});
      throw Error(made.code, made.text);
    }
    if (failure) {
      level.core->refuse(request, Error(failure->code, failure->text));
      return next(nullptr);
    }
    const auto operation = level.core->start(request);
    const auto over = [this, &level, sum, piece, operation, next] {
      operation->verify_input();
      operation->release_regions();
      if (const auto its = operation->failure()) note_failure(level, *sum, piece, *its);
      next(operation.get());
    };
    level.core->on_complete(operation, over);
  } catch (const std::exception& e) {
    const auto* const error = dynamic_cast<const Error*>(&e);
    note_failure(level, *sum, piece, {error != nullptr ? error->code() : ErrorCode::system, e.what()});
    next(nullptr);
  }
}

/// If not only the operation has failed, but its communicator, so does the caller's.
void Hierarchy::note_failure(Level& level, TwoLevelSum& sum, std::size_t piece, const Failure& failure) {
  if (!sum.pieces[piece].failure) sum.pieces[piece].failure = failure;
  if (!level.core) return;
  const auto whole = level.core->failure();
  if (!whole) return;
  level.core->told(*whole);
  parent_.fail(*whole);
}

std::byte* Hierarchy::share_of(const TwoLevelSum& sum, std::size_t piece) const {
  const engine::Piece& cut = sum.pieces[piece].cut;
  const std::uint64_t before = has_column() ? cut.before(place_) : 0;
  return sum.output + (cut.begin + before) * element_bytes(type_of(sum));
}

std::vector<std::uint64_t> Hierarchy::counts(const engine::Piece& piece) const {
  std::vector<std::uint64_t> all = piece.columns;
  all.resize(plan_.ranks_of(plan_.host_of(parent_.rank)).size(), 0);
  return all;
}

/// The first step: each column gets its share of what the ranks of this host have.
void Hierarchy::sum_host(const Sum& sum, std::size_t piece) {
  const engine::Piece& cut = sum->pieces[piece].cut;
  const std::vector<std::uint64_t> shares = counts(cut);
  std::vector<std::uint64_t> bits;
  if (!sum->bitmap.empty()) {
    const std::uint64_t block = sum->record.block_elems, elements = cut.elements();
    const std::uint64_t blocks = elements / block + (elements % block != 0);
    bits.resize(words_for(blocks));
    engine::copy_bits(bits, 0, sum->bitmap, cut.begin / block, blocks);
  }
  const std::byte* const input =
      sum->input != nullptr ? sum->input + cut.begin * element_bytes(type_of(*sum)) : nullptr;
  const CollectiveRequest request{.collective = wire::Collective::reduce_scatter,
                                  .rank = place_,
                                  .ranks = static_cast<int>(shares.size()),
                                  .input = input,
                                  .output = share_of(*sum, piece),
                                  .counts = shares,
                                  .type = type_of(*sum),
                                  .op = level_op(*sum),
                                  .block_elems = sum->record.block_elems,
                                  .bitmap = bits,
                                  .dense = sum->dense,
                                  .timeout = level_timeout(*sum),
                                  .tag = sum->record.tag};
  start(up_, sum, piece, &request, [this, sum, piece](Operation* operation) {
    if (operation != nullptr && !sum->pieces[piece].failure) {
      const auto summed = operation->union_bitmap();
      sum->pieces[piece].bits.assign(summed.begin(), summed.end());
      const auto add = [](auto& counter, const auto& more) {
        counter.fetch_add(more.load(std::memory_order_relaxed), std::memory_order_relaxed);
      };
      add(sum->operation->input_blocks, operation->input_blocks);
      add(sum->operation->bytes_sent, operation->bytes_sent);
      add(sum->operation->bytes_received, operation->bytes_received);
    }
    host_summed(sum, piece);
  });
}

void Hierarchy::host_summed(const Sum& sum, std::size_t piece) {
  const TwoLevelSum::PieceState& state = sum->pieces[piece];
  if (!has_column()) return hosts_summed(sum, piece);
  across_.steps.ready(state.across, [this, sum, piece] {
    if (sum->pieces[piece].cut.columns[static_cast<std::size_t>(place_)] > 0) return sum_hosts(sum, piece);
    hosts_summed(sum, piece);
  });
}

/// The second step: the ranks of a column sum what their hosts have.
void Hierarchy::sum_hosts(const Sum& sum, std::size_t piece) {
  const TwoLevelSum::PieceState& state = sum->pieces[piece];
  const std::uint64_t elements = state.cut.columns[static_cast<std::size_t>(place_)];
  std::byte* const share = share_of(*sum, piece);
  const AllreduceRequest request{.input = share,
                                 .output = share,
                                 .count = elements,
                                 .type = type_of(*sum),
                                 .op = level_op(*sum),
                                 .block_elems = sum->record.block_elems,
                                 .bitmap = state.bits,
                                 .timeout = level_timeout(*sum),
                                 .tag = sum->record.tag,
                                 .wire_type = WireType::as_is};
  start(across_, sum, piece, &request, [this, sum, piece, share, elements](Operation* operation) {
    TwoLevelSum::PieceState& mine = sum->pieces[piece];
    if (operation != nullptr && !mine.failure) {
      const auto summed = operation->union_bitmap();
      mine.bits.assign(summed.begin(), summed.end());
      if (static_cast<ReduceOp>(sum->record.op) == ReduceOp::avg)
        divide(share, elements, *sum, mine.bits, plan_.ranks());
      const auto add = [](auto& counter, const auto& more) {
        counter.fetch_add(more.load(std::memory_order_relaxed), std::memory_order_relaxed);
      };
      add(sum->operation->bytes_sent, operation->bytes_sent);
      add(sum->operation->bytes_received, operation->bytes_received);
    }
    hosts_summed(sum, piece);
  });
}

void Hierarchy::hosts_summed(const Sum& sum, std::size_t piece) {
  down_.steps.ready(sum->pieces[piece].down, [this, sum, piece] { give_to_host(sum, piece); });
}

/// The third step: the ranks of this host give each other their shares.
void Hierarchy::give_to_host(const Sum& sum, std::size_t piece) {
  const TwoLevelSum::PieceState& state = sum->pieces[piece];
  const std::vector<std::uint64_t> shares = counts(state.cut);
  const CollectiveRequest request{.collective = wire::Collective::allgather,
                                  .rank = place_,
                                  .ranks = static_cast<int>(shares.size()),
                                  .input = share_of(*sum, piece),
                                  .output = sum->output + state.cut.begin * element_bytes(type_of(*sum)),
                                  .counts = shares,
                                  .type = type_of(*sum),
                                  .block_elems = sum->record.block_elems,
                                  .bitmap = state.bits,
                                  .timeout = level_timeout(*sum),
                                  .tag = sum->record.tag};
  start(down_, sum, piece, &request,
        [this, sum, piece](Operation* operation) { piece_over(sum, piece, operation); });
}

void Hierarchy::piece_over(const Sum& sum, std::size_t piece, Operation* last) {
  const TwoLevelSum::PieceState& state = sum->pieces[piece];
  {
    const std::scoped_lock lock(sum->mutex);
    if (state.failure && !sum->failure) sum->failure = state.failure;
    if (last != nullptr && !state.failure) {
      const auto bits = last->union_bitmap();
      const std::uint64_t blocks = last->result_blocks();
      engine::copy_bits(sum->union_bits, state.cut.begin / sum->record.block_elems, bits, 0, blocks);
      sum->union_blocks += count_bits(bits);
    }
    if (--sum->pieces_left > 0) return;
  }
  sum->operation->rest_done(std::move(sum->union_bits), sum->union_blocks, sum->failure);
  parent_.ring();
  const std::scoped_lock lock(mutex_);
  --under_way_;
  over_.notify_all();
}

// --- End

void Hierarchy::end(const Failure& failure) {
  std::vector<std::shared_ptr<CommunicatorCore>> cores;
  {
    const std::scoped_lock lock(mutex_);
    if (!failure_) failure_ = failure;
    for (Level* const level : {&up_, &across_, &down_}) {
      if (level->core) cores.push_back(level->core);
    }
  }
  for (const auto& core : cores) core->abort(failure);
  std::unique_lock lock(mutex_);
  over_.wait(lock, [this] { return under_way_ == 0; });
}

void Hierarchy::close() {
  {
    const std::unique_lock lock(mutex_);
    if (!maker_.joinable()) return;
  }
  maker_.join();
  for (Level* const level : {&up_, &across_, &down_}) {
    if (level->core) level->core->close();
  }
}

void Hierarchy::add_to(Statistics& total) const {
  const std::scoped_lock lock(mutex_);
  for (const Level* const level : {&up_, &across_, &down_}) {
    if (!level->core) continue;
    const Statistics s = level->core->statistics();
    total.messages_sent += s.messages_sent;
    total.bytes_sent += s.bytes_sent;
    total.bytes_received += s.bytes_received;
    total.bytes_copied += s.bytes_copied;
    total.blocks_scanned += s.blocks_scanned;
  }
}

}  // namespace nzcl::comm
