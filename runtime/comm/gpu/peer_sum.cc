#include "runtime/comm/gpu/peer_sum.h"

#include <fmt/format.h>

#include <atomic>
#include <utility>

#include "runtime/base/divide.h"
#include "runtime/base/mix.h"

namespace nzcl::comm {
namespace {

/// The slices of a rank's share, but for the last ranks.
std::uint64_t slices_each(const gpu::Shape& shape, int ranks) {
  return ceil_div(shape.slices(), static_cast<std::uint64_t>(ranks));
}

}  // namespace

std::unique_ptr<PeerSum> PeerSum::make(std::shared_ptr<PeerMemory> memory,
                                       const std::shared_ptr<gpu::Gpu>& gpu, const PeerTensor& tensor) {
  const int ranks = memory->board().ranks();
  if (!gpu::fits_sum(tensor.shape, static_cast<std::uint32_t>(ranks))) return nullptr;
  auto slot = memory->take(gpu, tensor.shape, slices_each(tensor.shape, ranks));
  if (!slot) return nullptr;
  return std::unique_ptr<PeerSum>(new PeerSum(std::move(memory), std::move(slot), gpu, tensor));
}

PeerSum::PeerSum(std::shared_ptr<PeerMemory> memory, std::unique_ptr<PeerSlot> slot,
                 std::shared_ptr<gpu::Gpu> gpu, const PeerTensor& tensor)
    : memory_(std::move(memory)), slot_(std::move(slot)), gpu_(std::move(gpu)), tensor_(tensor) {}

PeerSum::~PeerSum() {
  if (slot_) release(!in_use_);
}

void PeerSum::begin_use() {
  ++slot_->use;
  in_use_ = true;
}

void PeerSum::begin(gpu::Stream stream) {
  PeerSlot::Words& words = slot_->words();
  const auto rank = static_cast<std::uint32_t>(memory_->board().rank());
  const auto ranks = static_cast<std::uint32_t>(memory_->board().ranks());
  const std::uint64_t each = slices_each(tensor_.shape, memory_->board().ranks());
  const gpu::PeerTable* const table = slot_->seen(&words.table);
  gpu_->await(stream, slot_->seen(&words.go[0]), value());
  gpu_->sum(stream, {.shape = tensor_.shape,
                     .type = tensor_.type,
                     .op = tensor_.op,
                     .ranks = ranks,
                     .rank = rank,
                     .slices_each = each,
                     .peers = table,
                     .result = slot_->results(),
                     .union_bits = tensor_.union_bits,
                     .go = slot_->seen(&words.go[0]),
                     .go_value = value()});
  gpu_->raise(stream, slot_->seen(&words.summed), slot_->use);
  gpu_->await(stream, slot_->seen(&words.go[1]), value());
  gpu_->place(stream, {.shape = tensor_.shape,
                       .slices = tensor_.shape.slices(),
                       .tensor = tensor_.output,
                       .bits = tensor_.union_bits,
                       .fill = !tensor_.in_place,
                       .peers = table,
                       .slices_each = each,
                       .go = slot_->seen(&words.go[1]),
                       .go_value = value()});
}

/// A number of all that the ranks have to agree on, or they would read what is not there.
std::uint64_t PeerSum::what() const {
  const gpu::Shape& shape = tensor_.shape;
  return make_key(shape.bytes, shape.block_bytes, shape.slice_blocks,
                  static_cast<std::uint64_t>(tensor_.type) << 8 | static_cast<std::uint64_t>(tensor_.op));
}

void PeerSum::vote(std::uint64_t epoch) {
  epoch_ = epoch;
  memory_->board().vote(epoch, slot_->number, what());
}

bool PeerSum::step(bool packed) {
  if (!packed || !epoch_ || gone_on_ == kWords) return false;
  PeerBoard& board = memory_->board();
  const bool packed_now = !std::exchange(noted_packed_, true);
  if (packed_now) board.note(PeerBoard::Step::packed, *epoch_);
  switch (state_) {
    case State::open:
      return decide() || packed_now;
    case State::agreed:
      return go_on_if_ready();
    case State::declined:
    case State::known:
      break;
  }
  return false;
}

bool PeerSum::decide() {
  PeerBoard::Slots slots{};
  const PeerBoard::Verdict verdict = memory_->board().verdict(*epoch_, slots);
  if (verdict == PeerBoard::Verdict::open) return false;
  std::optional<gpu::PeerTable> table;
  if (verdict == PeerBoard::Verdict::yes)
    table = memory_->table(slots, tensor_.shape, slices_each(tensor_.shape, memory_->board().ranks()));
  if (table) {
    slot_->words().table = *table;
    state_ = State::agreed;
  } else {
    state_ = State::declined;
    for (std::size_t word = 0; word < kWords; ++word) go_on(word, declined_value());
  }
  return true;
}

bool PeerSum::go_on_if_ready() {
  PeerBoard& board = memory_->board();
  if (gone_on_ == 0) {
    if (!board.all_have(PeerBoard::Step::packed, *epoch_)) return false;
    go_on(0, value());
    return true;
  }
  bool moved = false;
  if (!noted_summed_) {
    if (std::atomic_ref(slot_->words().summed).load(std::memory_order_acquire) != slot_->use) return false;
    board.note(PeerBoard::Step::summed, *epoch_);
    noted_summed_ = moved = true;
  }
  if (!board.all_have(PeerBoard::Step::summed, *epoch_)) return moved;
  go_on(1, value());
  state_ = State::known;
  return true;
}

std::string PeerSum::awaited() const {
  const PeerBoard& board = memory_->board();
  if (!epoch_ || !noted_packed_) return {};
  if (state_ == State::open) return fmt::format("rank(s) {} did not join", board.not_called(*epoch_));
  if (state_ != State::agreed) return {};
  if (const auto ranks = board.without(PeerBoard::Step::packed, *epoch_); !ranks.empty())
    return fmt::format("the stream of rank(s) {} did not come to it", ranks);
  return fmt::format("the GPU of rank(s) {} did not sum", board.without(PeerBoard::Step::summed, *epoch_));
}

void PeerSum::go_on(std::size_t word, std::uint32_t value) {
  std::atomic_ref(slot_->words().go[word]).store(value, std::memory_order_release);
  gone_on_ = word + 1;
}

void PeerSum::give_up() {
  constexpr std::uint32_t kNothing = 2;
  for (std::size_t word = gone_on_; word < kWords; ++word) go_on(word, value() + kNothing);
}

/// Nobody has read the slot if the sum was declined.
void PeerSum::release(bool packed) {
  if (in_use_) give_up();
  if (packed) return memory_->give_back(std::move(slot_), state_ == State::declined ? std::nullopt : epoch_);
  PeerMemory::lose(std::move(slot_));
}

}  // namespace nzcl::comm
