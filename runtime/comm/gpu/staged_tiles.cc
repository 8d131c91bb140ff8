#include "runtime/comm/gpu/staged_tiles.h"

#include "runtime/base/bitmap.h"

namespace nzcl::comm {

static_assert(kMostSliceElements <= 64 * gpu::kMostSliceWords);

namespace {

gpu::Shape shape_of(const engine::SliceLayout& layout) {
  return {.bytes = layout.tensor_bytes(),
          .block_bytes = layout.unit_elements() * layout.element_bytes(),
          .slice_blocks = layout.tile_units()};
}

}  // namespace

StagedTiles::Parts::Parts(const gpu::Shape& shape)
    : sets(whole_pages(shape.bytes)),
      counts(sets + shape.words() * sizeof(std::uint64_t)),
      end(counts + shape.slices() * sizeof(std::uint32_t)) {}

StagedTiles::StagedTiles(std::shared_ptr<StagingSlots> slots, const std::byte* tensor,
                         const engine::SliceLayout& layout)
    : slots_(std::move(slots)),
      tensor_(tensor),
      layout_(layout),
      shape_(shape_of(layout)),
      parts_(shape_),
      slot_(slots_->take({.input_bytes = parts_.end, .flags = shape_.slices()})),
      came_(layout.slices()) {}

StagedTiles::~StagedTiles() {
  if (slot_) release();
}

void StagedTiles::begin(gpu::Stream stream) {
  slot_->begin_use(shape_.slices());
  try {
    slots_->gpu()->pack_tiles(stream, {.shape = shape_,
                                       .tensor = tensor_,
                                       .packed = slot_->seen(values()),
                                       .sets = slot_->seen(sets()),
                                       .counts = slot_->seen(counts()),
                                       .flags = slot_->seen(slot_->flags()),
                                       .value = slot_->use()});
  } catch (...) {
    slot_->begin_use(0);  // nothing was started
    throw;
  }
}

bool StagedTiles::publish(engine::Operation& operation) {
  const std::uint64_t before = published_;
  for (std::uint64_t s = 0; s < layout_.slices(); ++s) {
    const std::uint64_t tiles = layout_.tiles_of(s);
    if (came_[s] == tiles) continue;
    while (came_[s] < tiles && slot_->is_raised(layout_.tile_number(s, came_[s]))) ++came_[s];
    if (came_[s] < tiles) continue;
    ++published_;
    operation.slice_staged(s, {}, true);
  }
  return published_ > before;
}

bool StagedTiles::ready(std::uint64_t begin, std::uint64_t end) const {
  for (std::uint64_t tile = begin / layout_.tile_elements(); layout_.tile_begin(tile) < end; ++tile) {
    if (!slot_->is_raised(tile)) return false;
  }
  return true;
}

engine::TilePart StagedTiles::part(std::uint64_t begin, std::uint64_t, engine::TileScratch&) const {
  using Form = engine::TilePart::Form;
  const std::uint64_t tile = begin / layout_.tile_elements();
  const wire::TileShape shape = layout_.shape_of_tile(tile);
  const std::size_t all = shape.units(), units = counts()[tile];
  if (units == 0) return {};
  engine::TilePart part{.form = Form::all,
                        .units = units,
                        .count = shape.elements,
                        .bitmap = {},
                        .offsets = {},
                        .values = values() + begin * layout_.element_bytes()};
  if (units == all) return part;
  const std::uint64_t* const set = sets() + tile * shape_.words_per_slice();
  if (gpu::TilesJob::numbers_fit(units, all)) {
    part.form = Form::offsets;
    part.offsets = {reinterpret_cast<const std::uint16_t*>(set), units};
    part.count = shape.elements_in(units, part.offsets.back() == all - 1);
  } else {
    part.form = Form::bitmap;
    part.bitmap = {set, words_for(all)};
    part.count = shape.elements_in(units, test_bit(part.bitmap, all - 1));
  }
  return part;
}

}  // namespace nzcl::comm
