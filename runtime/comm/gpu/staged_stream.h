// An allreduce of a sparse stream, or of a dense tensor in tiles, of which something is on a GPU.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "runtime/comm/gpu/staged_list.h"
#include "runtime/comm/gpu/staged_operation.h"
#include "runtime/comm/gpu/staged_packed.h"
#include "runtime/comm/gpu/staged_tiles.h"
#include "runtime/comm/gpu/staged_work.h"

namespace nzcl::comm {

/// What the caller has on the GPU, of the input and its result.
struct GpuStream {
  std::optional<GpuList> list;        // nothing: all of a sparse stream is the host's
  const std::byte* tensor = nullptr;  // or a dense tensor, which is exchanged in tiles
  std::byte* output = nullptr;        // a dense result; null: it is the host's, or packed
  std::optional<GpuPacked> packed;    // nothing: it is the host's, or dense
  gpu::Stream stream = nullptr;       // the caller's
};

/// Its input is the host's, a StagedList or StagedTiles; its result the host's, that of a StagedOperation
/// without an input, or a StagedPacked.
class StagedStream final : public StagedWork {
 public:
  /// Throws Error{system} if there is no memory.
  StagedStream(std::shared_ptr<StagingSlots> slots, const GpuStream& memory,
               const engine::SliceLayout& layout, Exchanged exchanged);
  ~StagedStream() override;

  /// What the operation has for an input or a result that is on the GPU.
  const StagedList* list() const { return list_ ? &*list_ : nullptr; }
  const std::shared_ptr<StagedTiles>& tiles() const { return tiles_; }
  const StagedOperation* dense() const { return dense_ ? &*dense_ : nullptr; }
  const StagedPacked* packed() const { return packed_ ? &*packed_ : nullptr; }

  void begin(std::uint64_t epoch, std::span<const std::uint64_t> bitmap, bool all) override;
  bool publish(engine::Operation& operation) override;
  std::optional<HostList> list_for_others() const override;
  bool all_published() const override;
  std::optional<Failure> place_rest(engine::Operation& operation, bool lost) override;
  bool is_placed() const override;
  std::optional<std::string> why_broken() const override;
  void release() override;

  bool brings(std::uint64_t slice) const override;
  void enqueue_wait(void* stream) override;
  void slice_over(std::uint64_t slice, std::span<const std::uint64_t> bits, bool valid,
                  bool far) noexcept override;

 private:
  const std::shared_ptr<StagingSlots> slots_;
  const gpu::Stream stream_;
  const bool by_others_;
  std::optional<StagedList> list_;
  std::shared_ptr<StagedTiles> tiles_;  // which the operation has too
  std::optional<StagedOperation> dense_;
  std::optional<StagedPacked> packed_;
  bool given_ = false;  // the list has come, and the operation has it, unless others exchange it
  gpu::Flag done_;      // of all but a dense result, which has its own
};

}  // namespace nzcl::comm
