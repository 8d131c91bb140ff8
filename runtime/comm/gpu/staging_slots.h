// Pinned host memory on the way between a GPU and the transport.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "runtime/base/divide.h"
#include "runtime/comm/gpu/far_slot.h"
#include "runtime/comm/session/registrations.h"
#include "runtime/gpu/gpu.h"
#include "runtime/operation/operation.h"

namespace nzcl::comm {

/// The bytes of as many pages as it takes. Parts of pinned memory begin at pages, so that kernels can read
/// and write sixteen bytes at a time everywhere.
constexpr std::uint64_t whole_pages(std::uint64_t bytes) {
  constexpr std::uint64_t kPageBytes = 4096;
  return ceil_div(bytes, kPageBytes) * kPageBytes;
}

/// How much of everything an operation needs: bytes of what it reads and of what it writes, words of the
/// bitmap of either, and flags.
struct SlotSize {
  std::uint64_t input_bytes = 0, output_bytes = 0, words = 0, flags = 0;
  bool far = false;  // there is as much memory of the GPU for either
  std::uint64_t bytes() const { return input_bytes + output_bytes; }
  bool fits(const SlotSize& room) const {
    return far == room.far && input_bytes <= room.input_bytes && output_bytes <= room.output_bytes &&
           words <= room.words && flags <= room.flags;
  }
};

/// Memory for one operation at a time, in one piece that is registered with the transport. Its result is
/// placed in groups of slices, and the GPU waits for each.
class StagingSlot {
 public:
  /// Throws Error{system} if the memory cannot be pinned or registered.
  StagingSlot(std::shared_ptr<gpu::Gpu> gpu, Registrations& registrations, const SlotSize& size);
  ~StagingSlot();
  StagingSlot(const StagingSlot&) = delete;
  StagingSlot& operator=(const StagingSlot&) = delete;

  static constexpr std::uint64_t kMostGroups = 16;

  const SlotSize& size() const { return size_; }
  const SharedRegion& region() const { return registration_->region; }
  std::byte* input() const { return memory_.host; }
  std::byte* output() const;
  std::uint64_t* input_bits() const;
  std::uint64_t* output_bits() const;
  std::uint32_t* flags() const;
  /// For each slice, one byte: whether its part of the input, or its result, lies in memory of the GPU.
  std::uint8_t* far_inputs() const;
  std::uint8_t* far_outputs() const { return far_inputs() + size_.flags; }
  /// That memory. Precondition: size().far.
  engine::FarMemory far_input() const { return {far_->data(), far_->region()}; }
  engine::FarMemory far_output() const;
  /// The word for which the GPU waits before it places a group, and what it is set to.
  std::uint32_t* ready(std::uint64_t group) const;
  std::uint32_t value_of_valid() const { return 2 * use_; }
  std::uint32_t value_of_invalid() const { return 2 * use_ + 1; }
  void set_ready(std::uint64_t group, bool valid) const;
  template <typename T>
  T* seen(T* at) const {
    return memory_.seen(at);
  }

  /// Begins a use in which the first `flags` flags are raised, to use(): by the GPU, or by raise_here() where
  /// it has nothing to do.
  void begin_use(std::uint64_t flags);
  /// Sets all words back to what they were before the present use began, so that it begins once more.
  void take_back_use() const;
  std::uint32_t use() const { return use_; }
  void raise_here(std::uint64_t flag) const;
  bool is_raised(std::uint64_t flag) const;
  /// Whether all flags of the present use are raised, after which the GPU does not write here any more.
  bool is_quiet() const;

 private:
  const std::shared_ptr<gpu::Gpu> gpu_;
  const SlotSize size_;
  const gpu::PinnedMemory memory_;
  std::shared_ptr<Registration> registration_;  // released before the memory is unpinned
  std::optional<FarSlot> far_;
  std::uint32_t use_ = 0;
  std::uint64_t used_flags_ = 0;
};

/// The slots of one GPU that are not in use, and the stream on which results are placed. It is one for all
/// operations, because a GPU has few queues: streams that share one wait for each other, and those of the
/// caller should not wait for results of which they know nothing. Thread-safe.
class StagingSlots {
 public:
  /// Throws Error{system}.
  StagingSlots(std::shared_ptr<gpu::Gpu> gpu, Registrations& registrations)
      : gpu_(std::move(gpu)), registrations_(registrations), stream_(gpu_->make_stream()) {}
  /// A slot to which the GPU may still write, because a stream has not come so far, is never freed.
  ~StagingSlots();

  const std::shared_ptr<gpu::Gpu>& gpu() const { return gpu_; }
  gpu::Stream stream() const { return stream_; }
  /// Another stream, see Communicator::device_stream(). Throws Error{system}.
  gpu::Stream callers_stream();
  /// Makes a stream wait for the end of an operation, unless the flag says that it is over. Throws
  /// Error{invalid_usage} if the stream is captured: a graph would wait for this one operation ever again.
  void await(gpu::Stream stream, const gpu::Flag& done) const;
  /// Returns the smallest that is large enough and that the GPU does not write to, or a new one. Throws
  /// Error{system}.
  std::unique_ptr<StagingSlot> take(const SlotSize& size);
  void give_back(std::unique_ptr<StagingSlot> slot);

 private:
  const std::shared_ptr<gpu::Gpu> gpu_;
  Registrations& registrations_;
  const gpu::Stream stream_;
  std::mutex mutex_;  // of all below
  std::optional<gpu::Stream> callers_stream_;
  std::vector<std::unique_ptr<StagingSlot>> slots_;
};

}  // namespace nzcl::comm
