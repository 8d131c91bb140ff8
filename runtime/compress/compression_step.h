// One step of a state, by several threads, while what is ready is sent already.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "runtime/compress/slice_source.h"
#include "runtime/compress/tensor_state.h"

namespace nzcl::compress {

/// Compresses the slices of one tensor, each once, by whichever thread claims it first, and keeps what is
/// sent of them until the next step. It allocates once: the operating system provides memory only for pages
/// that were written.
///
/// A slice is selected and coded by one thread in a row. Where codes depend on all slices, it is claimed
/// twice: the thread that selects in the last slice computes what they depend on, and then each slice is
/// coded.
///
/// begin(), make_next() and end() are for the thread that owns the state. Between begin() and end() other
/// threads may call make() and ready(), and content() of what is ready. Before and after that every slice is
/// ready, so that a late make() touches neither the state nor the gradient.
class CompressionStep final : public SliceSource {
 public:
  /// `state` outlives all steps, but not the object.
  explicit CompressionStep(TensorState& state);

  std::size_t slices() const { return slices_; }
  /// Throws what TensorState::begin_step() throws, and then nothing has changed.
  void begin(std::span<const float> gradient, int rank, int ranks);
  /// Selects in the next slice that nobody has claimed, or codes it. Returns false if there is none. Waits
  /// for other threads where all slices are claimed, but not all are selected yet.
  bool make_next() noexcept;
  /// Waits until all slices are ready, and ends the step of the state.
  void end() noexcept;
  /// Ends the step as if it had not begun. Precondition: no other thread has been told of it.
  void abandon() noexcept;

  /// Does for the slice what can be done now, unless another thread has done so or is doing so, or too many
  /// are compressing others. The slice may not be ready after that.
  void make(std::size_t slice) noexcept override;
  bool ready(std::size_t slice) const noexcept override {
    return progress_[slice].load(std::memory_order_acquire) == Progress::ready;
  }
  SliceContent content(std::size_t slice) const noexcept override;
  /// For RandomK: whether the slice has exactly what all ranks draw. It may have NaNs and infinities besides.
  bool has_the_draw(std::size_t slice) const noexcept override {
    return state_.outcome(slice).non_finite == 0;
  }
  /// What all ranks draw in this step of the elements [begin, end) of a slice, as TensorState::draw() has it.
  std::size_t draw(std::size_t slice, std::uint32_t begin, std::uint32_t end,
                   std::span<std::uint16_t> offsets) const noexcept override {
    return state_.draw(number_, slice, begin, end, offsets);
  }

 private:
  enum class Progress : std::uint8_t { open, selecting, selected, coding, ready };
  /// What a thread needs while it compresses. The first is the owner's; others are made when they are needed.
  struct Helper {
    std::atomic_flag busy = ATOMIC_FLAG_INIT;
    std::unique_ptr<SliceBuffers> buffers;
  };
  static constexpr std::size_t kHelpers = 8;

  bool claim(std::size_t slice, Progress from, Progress to) noexcept;
  /// Selects in the slice or codes it, if it can be claimed for that.
  bool advance(std::size_t slice, SliceBuffers& buffers) noexcept;
  void select(std::size_t slice, SliceBuffers& buffers) noexcept;
  void code(std::size_t slice, SliceBuffers& buffers) noexcept;

  TensorState& state_;
  const std::size_t slices_;
  std::unique_ptr<std::atomic<Progress>[]> progress_;
  std::unique_ptr<float[]> values_;           // of slice i from its first element on
  std::unique_ptr<std::uint16_t[]> offsets_;  // the same
  SliceBuffers own_;
  std::array<Helper, kHelpers> helpers_;
  std::uint64_t number_ = 0;  // of the step
  std::size_t next_ = 0;  // what make_next() looks at next: slices, and then, if they are coded later, again
  std::atomic<std::size_t> unselected_{0};  // slices; only for codes_after_all()
  std::atomic<bool> selected_{false};       // all of them, and the scales are known
};

}  // namespace nzcl::compress
