// The tiles of a dense tensor, on their way from a GPU that packs them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "runtime/comm/gpu/staging_slots.h"
#include "runtime/gpu/gpu.h"
#include "runtime/operation/operation.h"
#include "runtime/operation/tile_source.h"
#include "runtime/plan/slice_layout.h"

namespace nzcl::comm {

/// The source of an operation's tiles. A kernel on the caller's stream packs each of them; see
/// runtime/gpu/README.md. Used by the call, then by the staging thread, and by the lanes for slices that are
/// there.
class StagedTiles final : public engine::TileSource {
 public:
  /// Whether a tensor of this layout can be packed so.
  static bool can_pack(const engine::SliceLayout& layout) { return layout.tiled() && layout.blocks() > 0; }
  /// `tensor` is on the GPU. Throws Error{system} if there is no memory. Precondition: can_pack().
  StagedTiles(std::shared_ptr<StagingSlots> slots, const std::byte* tensor,
              const engine::SliceLayout& layout);
  ~StagedTiles() override;
  StagedTiles(const StagedTiles&) = delete;
  StagedTiles& operator=(const StagedTiles&) = delete;

  /// What the operation has for an input, beside this source.
  engine::InputView input() const { return {.base = values(), .region = slot_->region().get()}; }
  const SharedRegion& shared_region() const { return slot_->region(); }
  /// Has the tiles packed, in the order of the caller's stream. Throws Error.
  void begin(gpu::Stream stream);
  /// Says of the slices whose tiles have come that they are there. Returns whether there are any.
  bool publish(engine::Operation& operation);
  bool all_published() const { return published_ == layout_.slices(); }
  /// Gives the memory to others, when the GPU does not write to it any more. Nobody may ask for a tile then.
  void release() { slots_->give_back(std::move(slot_)); }

  void make(std::uint64_t, std::uint64_t) override {}
  bool ready(std::uint64_t begin, std::uint64_t end) const override;
  engine::TilePart part(std::uint64_t begin, std::uint64_t end, engine::TileScratch& scratch) const override;
  std::span<const std::uint16_t> drawn(std::uint64_t, std::uint64_t, engine::TileScratch&) const override {
    return {};
  }
  const verbs::MemoryRegion* region() const override { return slot_->region().get(); }

 private:
  /// The parts of the pinned memory, one behind the other.
  struct Parts {
    explicit Parts(const gpu::Shape& shape);
    std::uint64_t values = 0, sets, counts, end;
  };
  std::byte* values() const { return slot_->input(); }
  std::uint64_t* sets() const { return reinterpret_cast<std::uint64_t*>(slot_->input() + parts_.sets); }
  std::uint32_t* counts() const { return reinterpret_cast<std::uint32_t*>(slot_->input() + parts_.counts); }

  const std::shared_ptr<StagingSlots> slots_;
  const std::byte* const tensor_;
  const engine::SliceLayout layout_;
  const gpu::Shape shape_;  // whose slices are tiles, and whose blocks are units
  const Parts parts_;
  std::unique_ptr<StagingSlot> slot_;
  std::vector<std::uint64_t> came_;  // by slice: how many of its first tiles are known to have come
  std::uint64_t published_ = 0;
};

}  // namespace nzcl::comm
