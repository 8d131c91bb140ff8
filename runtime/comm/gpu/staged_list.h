// The values and indices that a rank contributes, on their way from a GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "nzcl/error.h"
#include "nzcl/indices.h"
#include "runtime/comm/gpu/staging_slots.h"
#include "runtime/gpu/gpu.h"
#include "runtime/operation/operation.h"

namespace nzcl::comm {

/// A caller's list of blocks, of which the values, the indices or both are on a GPU.
struct GpuList {
  const std::byte* values = nullptr;
  std::uint64_t value_bytes = 0;
  IndexSpan indices;
  bool values_on_gpu = false, indices_on_gpu = false;  // otherwise the host can read them
  bool sum_duplicates = false;
};

/// The same where the host can read all of it. Its values lie in `region`.
struct HostList {
  std::byte* values = nullptr;
  const verbs::MemoryRegion* region = nullptr;
  IndexSpan indices;
  bool sum_duplicates = false;
};

/// Gives a staged operation a list that has come, and says that all its slices are there. It may put the
/// values into another order. If the list is wrong, the operation refuses its caller's request instead.
void give_list(engine::Operation& operation, const HostList& list);
/// Does the same without a list, because of what is wrong.
void refuse_list(engine::Operation& operation, ErrorCode code, std::string_view why);

/// Used by the call, and then by the staging thread.
class StagedList {
 public:
  /// Throws Error{system} if there is no memory.
  StagedList(std::shared_ptr<StagingSlots> slots, const GpuList& list);
  ~StagedList();
  StagedList(const StagedList&) = delete;
  StagedList& operator=(const StagedList&) = delete;

  /// What the operation has for an input. Its values lie here in ascending order when it is given them.
  engine::InputView input() const;
  const SharedRegion& region() const { return slot_->region(); }
  /// Has the list brought here, in the order of the caller's stream. What the host can read is copied at
  /// once. Throws Error.
  void begin(gpu::Stream stream);
  bool has_come() const;
  /// Precondition: it has come.
  HostList list() const;

 private:
  std::byte* values() const { return slot_->input(); }
  std::byte* indices() const;

  const std::shared_ptr<StagingSlots> slots_;
  const GpuList list_;
  const std::uint64_t index_bytes_;
  const std::uint32_t runners_;  // blocks of threads, each of which raises a flag
  std::unique_ptr<StagingSlot> slot_;
};

}  // namespace nzcl::comm
