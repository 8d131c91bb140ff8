#include "runtime/comm/gpu/peer_memory.h"

#include <algorithm>

#include "nzcl/error.h"
#include "runtime/base/log.h"
#include "runtime/comm/gpu/staging_slots.h"
#include "runtime/plan/tuning.h"

namespace nzcl::comm {
namespace {

/// A driver shares memory in pieces of so many bytes, and what else lies in one would be shared too.
constexpr std::uint64_t kPieceOfGpu = 2 << 20;

std::uint64_t bits_bytes(const gpu::Shape& shape) {
  return whole_pages(shape.words() * sizeof(std::uint64_t));
}

std::uint64_t results_bytes(const gpu::Shape& shape, std::uint64_t slices_each, int rank) {
  const auto share = static_cast<std::uint64_t>(rank);
  return whole_pages(gpu::share_begin(shape, slices_each, share + 1) -
                     gpu::share_begin(shape, slices_each, share));
}

/// Whether a rank's slot has room for its part of such a tensor. What it says of itself may be wrong.
bool fits(const PublishedSlot& slot, const gpu::Shape& shape, std::uint64_t slices_each, int rank) {
  return slot.results_at <= slot.bits_at && slot.bits_at <= slot.memory.bytes &&
         shape.bytes <= slot.results_at &&
         results_bytes(shape, slices_each, rank) <= slot.bits_at - slot.results_at &&
         bits_bytes(shape) <= slot.memory.bytes - slot.bits_at;
}

}  // namespace

PeerSlot::PeerSlot(std::shared_ptr<gpu::Gpu> gpu, const gpu::Shape& shape, std::uint64_t slices_each,
                   int rank)
    : gpu_(std::move(gpu)),
      results_at_(whole_pages(shape.bytes)),
      bits_at_(results_at_ + results_bytes(shape, slices_each, rank)),
      bytes_(ceil_div(bits_at_ + bits_bytes(shape), kPieceOfGpu) * kPieceOfGpu),
      memory_(gpu_->allocate(bytes_)) {
  try {
    pinned_ = gpu_->pin(whole_pages(sizeof(Words)));
  } catch (...) {
    gpu_->free(memory_);
    throw;
  }
  try {
    published = {gpu_->share(memory_), results_at_, bits_at_};
  } catch (...) {
    gpu_->unpin(pinned_);
    gpu_->free(memory_);
    throw;
  }
}

PeerSlot::~PeerSlot() {
  gpu_->unpin(pinned_);
  gpu_->free(memory_);
}

PeerMemory::PeerMemory(std::shared_ptr<PeerBoard> board)
    : board_(std::move(board)), opened_(static_cast<std::size_t>(board_->ranks())) {}

PeerMemory::~PeerMemory() { close(); }

std::unique_ptr<PeerSlot> PeerMemory::take(const std::shared_ptr<gpu::Gpu>& gpu, const gpu::Shape& shape,
                                           std::uint64_t slices_each) {
  const std::scoped_lock lock(mutex_);
  if (ended_ || (gpu_ && gpu_ != gpu)) return nullptr;
  gpu_ = gpu;
  try {
    open_published();
    auto best = slots_.end();
    bool others_will_open = false, known_size = false;
    for (auto slot = slots_.begin(); slot != slots_.end(); ++slot) {
      PeerSlot& s = **slot;
      if (!fits(s.published, shape, slices_each, board_->rank())) continue;
      known_size = true;
      if (!board_->all_opened(s.number)) {
        others_will_open = true;
      } else if (!s.last || board_->all_have(PeerBoard::Step::placed, *s.last)) {
        if (best == slots_.end() || s.bytes() < (*best)->bytes()) best = slot;
      }
    }
    if (best != slots_.end()) {
      auto found = std::move(*best);
      slots_.erase(best);
      return found;
    }
    if (others_will_open) return nullptr;
    // One may still be read by another rank when the next operation begins. Later calls should not wait for
    // the GPU, so there are two from the beginning.
    for (int more = known_size ? 1 : 2; more > 0; --more) make(shape, slices_each);
    open_published();  // its own, as those of the others
  } catch (const Error& e) {
    give_up(e.what());
  }
  return nullptr;
}

void PeerMemory::open_published() {
  for (int rank = 0; rank < board_->ranks(); ++rank) {
    auto& opened = opened_[static_cast<std::size_t>(rank)];
    while (opened.size() < board_->published(rank)) {
      const PublishedSlot slot = board_->slot(rank, static_cast<std::uint32_t>(opened.size()));
      opened.push_back({.slot = slot, .at = gpu_->open(slot.memory)});
      board_->note_opened(rank, static_cast<std::uint32_t>(opened.size()));
    }
  }
}

/// Makes a slot and publishes it, if there may be one more.
void PeerMemory::make(const gpu::Shape& shape, std::uint64_t slices_each) {
  if (board_->published(board_->rank()) == PeerBoard::kMostSlots) return;
  if (bytes_ + shape.bytes > engine::kMostPeerBytes) return;
  auto slot = std::make_unique<PeerSlot>(gpu_, shape, slices_each, board_->rank());
  slot->number = board_->publish(slot->published).value();
  bytes_ += slot->bytes();
  slots_.push_back(std::move(slot));
}

/// Nobody waits for this rank: without its votes all operations are summed on the host.
void PeerMemory::give_up(const std::string& why) {
  ended_ = true;
  log().info("rank {}: the GPUs of this host's ranks do not read each other's memory, and the host sums: {}",
             board_->rank(), why);
}

void PeerMemory::give_back(std::unique_ptr<PeerSlot> slot, std::optional<std::uint64_t> last) {
  if (last) {
    slot->last = last;
    board_->note(PeerBoard::Step::placed, *last);
  }
  const std::scoped_lock lock(mutex_);
  slots_.push_back(std::move(slot));
}

void PeerMemory::lose(std::unique_ptr<PeerSlot> slot) {
  static auto* const kept = new std::vector<std::unique_ptr<PeerSlot>>;  // until the process ends
  static auto* const mutex = new std::mutex;
  const std::scoped_lock lock(*mutex);
  kept->push_back(std::move(slot));
}

std::optional<gpu::PeerTable> PeerMemory::table(const PeerBoard::Slots& slots, const gpu::Shape& shape,
                                                std::uint64_t slices_each) const {
  const std::scoped_lock lock(mutex_);
  gpu::PeerTable table{};
  for (std::size_t rank = 0; rank < opened_.size(); ++rank) {
    if (slots[rank] >= opened_[rank].size()) return std::nullopt;
    const Opened& opened = opened_[rank][slots[rank]];
    if (!fits(opened.slot, shape, slices_each, static_cast<int>(rank))) return std::nullopt;
    table.contribution[rank] = opened.at;
    table.result[rank] = opened.at + opened.slot.results_at;
    table.bits[rank] = reinterpret_cast<const std::uint64_t*>(opened.at + opened.slot.bits_at);
  }
  return table;
}

void PeerMemory::close() {
  const std::scoped_lock lock(mutex_);
  ended_ = true;
  for (auto& opened : opened_) {
    for (const Opened& one : opened) gpu_->close(one.slot.memory, one.at);
    opened.clear();
  }
}

}  // namespace nzcl::comm
