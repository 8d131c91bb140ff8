// What one rank keeps of one tensor, and one step of compression, slice by slice.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "nzcl/compress.h"
#include "runtime/compress/layout.h"
#include "runtime/compress/rank_of_magnitudes.h"
#include "runtime/compress/select.h"
#include "runtime/compress/streaming_threshold.h"

namespace nzcl::compress {

/// What a thread needs to compress slices: made once, and used for one slice at a time.
struct SliceBuffers {
  SliceBuffers();
  std::vector<std::uint64_t> bitmap;   // of the slice's selected elements
  std::vector<std::uint16_t> offsets;  // the same, ascending
  std::vector<float> before;           // their G, where values are coded
  std::vector<std::byte> codes;
  std::vector<float> no_residual;  // zeros, for states that keep none
};

/// What is known of a slice when it has been compressed.
struct SliceOutcome {
  std::size_t sent = 0;        // the first so many of SliceBuffers::offsets and of the values
  std::size_t lower = 0;       // elements that reach the lower threshold
  std::size_t non_finite = 0;  // among what is sent
  std::size_t coded_bytes = 0;
  double scales = 0;  // the sum of the segments' scales, and their number
  std::size_t scale_count = 0;
};

/// The small part of what lives from step to step. The large part is residual and velocity.
struct StepState {
  std::uint64_t steps = 0;  // that have ended
  std::uint64_t sent_total = 0;
  std::uint64_t wanted = 0;       // by the streaming top-k in the step before
  std::uint32_t since_exact = 0;  // steps since the exact threshold was found
  StreamingThreshold threshold;   // of the streaming top-k
  bool operator==(const StepState&) const = default;
};

/// A step is begin_step(), compress_slice() once for every slice, and end_step(). Different slices may be
/// compressed by different threads at the same time, each with buffers of its own. The other calls may not
/// overlap with anything.
class TensorState {
 public:
  /// The compressor has been checked.
  TensorState(const Compressor& compressor, std::span<const Layer> layers);

  const Compressor& compressor() const { return compressor_; }
  const Layout& layout() const { return layout_; }

  /// Keeps the gradient, which must not change until end_step(). `rank` gives ranks different random numbers
  /// for stochastic rounding. Throws Error{invalid_argument}, and changes nothing, if the gradient has
  /// another size than the tensor or a value that the compressor refuses.
  void begin_step(std::span<const float> gradient, int rank, int ranks);
  /// Compresses slice `index`: writes the values to `values`, which has room for the whole slice, and their
  /// offsets to the buffers. What lies behind the last value within `values` is arbitrary.
  SliceOutcome compress_slice(std::size_t index, SliceBuffers& buffers, std::span<float> values) noexcept;
  void end_step() noexcept;
  /// Puts what the last step gave, but was not sent after all, back into the residual.
  void take_back(const CompressedGradient& sent) noexcept;

  void reset() noexcept;
  std::vector<std::byte> save() const;
  void restore(std::span<const std::byte> saved);
  CompressionReport report() const;
  std::span<const float> residual() const { return residual_; }

 private:
  SliceData data_of(const Slice& slice, SliceBuffers& buffers) noexcept;
  double ratio_now(double ratio) const;
  double clipping(int ranks) const;

  void prepare(const AdaComp& selection);
  void prepare(const TopK& selection);
  void prepare(const Threshold& selection);
  void prepare(const RandomK& selection);
  void prepare(const BlockTopK& selection);
  void prepare(const Everything& selection);
  void find_exact_threshold(std::uint64_t wanted, bool exact);
  void settle_ties(std::uint64_t among_the_largest);
  void measure_bins() noexcept;
  void sum_layer_scales() noexcept;

  Rule rule_of(std::size_t index) const;
  Selected select_by_bins(const SliceData& data, Rule rule, const Slice& slice, SliceBuffers& buffers,
                          std::span<float> values) noexcept;
  void code_values(const Slice& slice, std::size_t index, SliceBuffers& buffers, std::span<float> values,
                   SliceOutcome& outcome) noexcept;
  void make_ternary(const Slice& slice, const SliceBuffers& buffers, std::span<float> values,
                    SliceOutcome& outcome) const noexcept;
  double scale_of(const Slice& slice, const Segment& segment, std::span<const float> values) const noexcept;
  std::size_t coded_bytes(const Slice& slice, const SliceBuffers& buffers,
                          const SliceOutcome& outcome) const noexcept;

  const Compressor compressor_;
  const Layout layout_;
  std::vector<float> residual_;  // empty: none is kept
  std::vector<float> velocity_;  // empty: no momentum
  StepState state_;

  // Of the step that is under way, or was the last.
  std::span<const float> gradient_;
  int rank_ = 0;
  float factor_ = 1;
  MagnitudeBits threshold_ = 1, lower_threshold_ = 0;
  std::uint64_t wanted_ = 0, draw_below_ = 0;
  bool found_exactly_ = false;
  std::vector<SliceOutcome> outcomes_;         // one for each slice
  std::vector<MagnitudeBits> bin_thresholds_;  // one for each bin
  std::vector<double> layer_scales_;           // AdaComp with the exact scale
  /// Where an exact top-k takes only some of the elements that are equal to the threshold: in slices before
  /// this one it takes all, in this one those before tie_ends_[0], and none after it.
  std::size_t tie_slice_ = 0;
  std::array<std::uint32_t, 2> tie_ends_{};
  std::array<MagnitudeBits, 2> tie_thresholds_{};

  MagnitudeRank rank_of_magnitudes_;
  SliceBuffers own_buffers_;               // for what begin_step() does
  std::vector<MagnitudeBits> magnitudes_;  // of one slice
};

}  // namespace nzcl::compress
