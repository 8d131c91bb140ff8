#include "runtime/comm/gpu/staged_list.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <string_view>

#include "nzcl/error.h"
#include "runtime/base/plain_floats.h"
#include "runtime/comm/gpu/list_memory.h"
#include "runtime/comm/lists/index_list.h"
#include "runtime/operation/index_memory.h"

namespace nzcl::comm {
StagedList::StagedList(std::shared_ptr<StagingSlots> slots, const GpuList& list)
    : slots_(std::move(slots)),
      list_(list),
      index_bytes_(list.indices.size() * index_bytes(list.indices.type())),
      runners_(list_runners(list.value_bytes + index_bytes_)),
      slot_(slots_->take({.input_bytes = whole_pages(list.value_bytes) + index_bytes_, .flags = runners_})) {}

StagedList::~StagedList() { slots_->give_back(std::move(slot_)); }

std::byte* StagedList::indices() const { return slot_->input() + whole_pages(list_.value_bytes); }

engine::InputView StagedList::input() const {
  return {.base = values(), .region = region().get(), .sparse = true};
}

void StagedList::begin(gpu::Stream stream) {
  if (!list_.values_on_gpu) std::memcpy(values(), list_.values, list_.value_bytes);
  if (!list_.indices_on_gpu) std::memcpy(indices(), list_.indices.data(), index_bytes_);
  slot_->begin_use(runners_);
  try {
    slots_->gpu()->copy_list(
        stream, {.values = {list_.values, slot_->seen(values())},
                 .indices = {static_cast<const std::byte*>(list_.indices.data()), slot_->seen(indices())},
                 .sizes = {.blocks = list_.indices.size(),
                           .value_bytes = list_.values_on_gpu ? list_.value_bytes : 0,
                           .index_bytes = list_.indices_on_gpu ? index_bytes_ : 0},
                 .flags = slot_->seen(slot_->flags()),
                 .value = slot_->use(),
                 .runners = runners_});
  } catch (...) {
    slot_->begin_use(0);  // nothing was started
    throw;
  }
}

bool StagedList::has_come() const { return slot_->is_quiet(); }

HostList StagedList::list() const {
  return {.values = values(),
          .region = region().get(),
          .indices = IndexSpan(indices(), list_.indices.size(), list_.indices.type()),
          .sum_duplicates = list_.sum_duplicates};
}

// --- Lists

namespace {

void set_list(engine::Operation& operation, const HostList& given) {
  const PlainFloats floats;  // for the sums of duplicates
  const engine::SliceLayout& layout = operation.layout;
  const std::uint64_t block_elems = operation.record.block_elems;
  std::byte* const values = given.values;
  const IndexList list(given.indices, layout.blocks(), given.sum_duplicates);
  list.check_sums(values, operation.record.count, block_elems, operation.type(), operation.reduce_op());
  if (layout.tiled()) {
    operation.set_input_stream(
        list.stream(layout, values, block_elems, given.region, operation.type(), operation.reduce_op()));
    return;
  }
  if (!list.order().empty()) {
    const auto sorted = list.sorted_values(values, block_elems, operation.type(), operation.reduce_op());
    std::memcpy(values, sorted.data(), sorted.size());
  }
  operation.set_input_bitmap(list.bitmap(layout.blocks()));
}

void publish_all(engine::Operation& operation) {
  for (std::uint64_t s = 0; s < operation.layout.slices(); ++s) operation.slice_staged(s, {}, true);
}

}  // namespace

void give_list(engine::Operation& operation, const HostList& list) {
  constexpr std::string_view kCall = "allreduce: ";
  try {
    set_list(operation, list);
  } catch (const Error& e) {
    std::string_view text = e.what();
    if (text.starts_with(kCall)) text.remove_prefix(kCall.size());
    return refuse_list(operation, e.code(), text);
  } catch (const std::bad_alloc&) {
    return refuse_list(operation, ErrorCode::system, "out of memory");
  }
  publish_all(operation);
}

void refuse_list(engine::Operation& operation, ErrorCode code, std::string_view why) {
  operation.refuse_staged(code, why);
  publish_all(operation);
}

}  // namespace nzcl::comm
