// What one rank keeps of one tensor, and one step of compression, slice by slice.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
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
  std::vector<float> before;       // the selected values before they are coded
  std::vector<std::byte> codes;    // the coded values
  std::vector<float> no_residual;  // zeros in place of a residual, for states that keep none
};

/// What is known of a slice when it has been compressed.
struct SliceOutcome {
  std::size_t sent = 0;        // elements: that many offsets, and that many values
  std::size_t lower = 0;       // elements that reach the lower threshold
  std::size_t non_finite = 0;  // sent values that are NaN or infinite
  std::size_t coded_bytes = 0;
  double scales = 0;  // the sum of the scales of ternary values, for the report's mean
  std::size_t scale_count = 0;
};

/// The few numbers that live from step to step beside the two large arrays, residual and velocity.
struct StepState {
  std::uint64_t steps = 0;  // steps that have ended
  std::uint64_t sent_total = 0;
  float rate = 0;  // of learning, in whose units the residual is; 0: none was given
  // Of the streaming top-k:
  std::uint64_t wanted = 0;       // how many elements the step before was to send
  std::uint32_t since_exact = 0;  // steps since the threshold was last found exactly
  StreamingThreshold threshold;
  bool operator==(const StepState&) const = default;
};

/// One rank's state of one tensor. A step is begin_step(), then select_slice() and code_slice() once for
/// every slice, and end_step(). Different threads may handle different slices at the same time, each with
/// buffers of its own. All other calls must come one at a time.
///
/// Where the code of a value depends on all slices (codes_after_all()), end_selection() comes behind the last
/// select_slice() and before the first code_slice().
class TensorState {
 public:
  /// Where residual and velocity are: in this object, or in memory that the host cannot read.
  enum class Arrays : std::uint8_t { here, elsewhere };
  /// The caller has checked the compressor and the layers (check.h).
  TensorState(const Compressor& compressor, std::span<const Layer> layers, Arrays arrays = Arrays::here);

  const Compressor& compressor() const { return compressor_; }
  const Layout& layout() const { return layout_; }

  /// Keeps the gradient, which must not change until end_step(). `rank` gives ranks different random numbers
  /// for stochastic rounding. Throws Error{invalid_argument}, and changes nothing, if the gradient has
  /// another size than the tensor or a value that the compressor refuses.
  void begin_step(std::span<const float> gradient, int rank, int ranks);
  /// Whether the values of a slice can be coded only when all slices are selected: AdaComp's exact scale is
  /// the mean over a whole layer.
  bool codes_after_all() const { return codes_after_all_; }
  /// Selects in slice `index`: writes the offsets of the selected elements and their values, for which there
  /// is room for the whole slice each. Returns how many. What comes behind them is arbitrary.
  std::size_t select_slice(std::size_t index, SliceBuffers& buffers, std::span<std::uint16_t> offsets,
                           std::span<float> values) noexcept;
  /// Computes the scales of layers. Only for codes_after_all().
  void end_selection() noexcept;
  /// Turns the values that select_slice() has written into those that are sent, and keeps the difference.
  /// `offsets` are those of the values, ascending.
  void code_slice(std::size_t index, SliceBuffers& buffers, std::span<const std::uint16_t> offsets,
                  std::span<float> values) noexcept;
  void end_step() noexcept;
  /// Ends a step of which no slice was selected, as if it had not begun.
  void abandon_step() noexcept { gradient_ = {}; }

  // --- Of a state whose arrays are elsewhere: a step is begin_step_elsewhere(), then what was selected and
  // code_slice() for every slice, with end_selection() in between where that is due, and
  // end_step_elsewhere().
  /// What has to be known to select elsewhere.
  struct Elsewhere {
    Rule rule;
    /// Not 0: the threshold is that of the so many largest elements, or blocks.
    std::uint64_t wanted = 0;
    /// If no more than so many too many equal that threshold, all of them are sent.
    std::uint64_t more_ties = 0;
    /// Of RandomK: what the keys of all slices have in common, see make_key(). `rule` has none.
    std::uint64_t key = 0;
  };
  Elsewhere begin_step_elsewhere(int rank);
  /// `maxima`: of the slice's bins, if the scale of the values follows from them.
  void selected_elsewhere(std::size_t index, const Selected& selected,
                          std::span<const MagnitudeBits> maxima) noexcept;
  bool wants_maxima() const {
    return std::holds_alternative<AdaComp>(compressor_.selection) &&
           std::holds_alternative<Ternary>(compressor_.values);
  }
  /// `found`: the threshold of the wanted ones, and whether only some of those that equal it were sent.
  struct FoundElsewhere {
    MagnitudeBits threshold = 0;
    bool some_ties = false;
  };
  void end_step_elsewhere(const FoundElsewhere& found) noexcept;
  /// Whether what coding loses of the values stays in the residual. Where this is elsewhere, what
  /// SliceBuffers::before says is what the values were before code_slice().
  bool feeds_back() const;
  /// The 2-norm above which gradients are scaled down; 0: they are not.
  double most_norm(int ranks) const;

  /// Adds the values of the last step to the residual again, because they could not be sent after all.
  void take_back(const CompressedGradient& sent) noexcept;

  /// Multiplies what is kept by the rate before over this one. Not during a step.
  void set_rate(float rate) noexcept;
  float rate() const { return state_.rate; }

  void reset() noexcept;
  std::vector<std::byte> save() const { return save(residual_, velocity_); }
  /// Arrays as they are saved.
  struct SavedArrays {
    std::span<const std::byte> residual, velocity;
  };
  /// Returns those of the saved state. They still have to be written to where the arrays are, if that is
  /// elsewhere.
  SavedArrays restore(std::span<const std::byte> saved);
  std::vector<std::byte> save(std::span<const float> residual, std::span<const float> velocity) const;
  /// Without what concerns results.
  CompressionReport report() const;
  std::span<const float> residual() const { return residual_; }
  std::span<const float> result_residual() const { return result_residual_; }
  /// The number of the step that has begun last, from 0 on.
  std::uint64_t step_number() const { return state_.steps; }

  // --- Of results that this rank codes as an owner, between begin_step() and the end of the operation.
  // Several threads may call these for different elements at the same time.
  /// Adds what coding has lost before to the sums of the elements at begin + offsets.
  void add_result_errors(std::uint64_t begin, std::span<const std::uint16_t> offsets,
                         std::span<float> sums) const noexcept;
  /// Keeps the difference between `sums` and what they were `coded` to.
  void keep_result_errors(std::uint64_t begin, std::span<const std::uint16_t> offsets,
                          std::span<const float> sums, std::span<const float> coded) noexcept;
  /// What the last step made of a slice that it has compressed, and the scales of its buckets, if its values
  /// are quantised.
  const SliceOutcome& outcome(std::size_t index) const { return outcomes_[index]; }
  std::span<const float> scales(std::size_t index) const;
  /// What RandomK draws in step number `step`, which is this one or the last, of the elements [begin, end) of
  /// a slice: offsets from `begin`. Returns how many it has written.
  std::size_t draw(std::uint64_t step, std::size_t index, std::uint32_t begin, std::uint32_t end,
                   std::span<std::uint16_t> offsets) const noexcept;
  /// What the next step of all ranks' states must have in common, so that they draw the same: 0 if they draw
  /// nothing.
  std::uint64_t draw_key() const;

 private:
  /// The parts of gradient, residual and velocity from element `begin` on, at most as many as a slice has. A
  /// state without a residual gets zeros.
  SliceData data_at(std::uint64_t begin, std::size_t elements, SliceBuffers& buffers) noexcept;
  SliceData data_of(const Slice& slice, SliceBuffers& buffers) noexcept;
  double ratio_now(double ratio) const;
  ThresholdCounts count_step() noexcept;
  double clipping(int ranks) const;

  void prepare(const AdaComp& selection);
  void prepare(const TopK& selection);
  void plan(const TopK& selection);
  void prepare(const Threshold& selection);
  void prepare(const RandomK& selection);
  void prepare(const BlockTopK& selection);
  std::uint64_t wanted_blocks(const BlockTopK& selection) const;
  void prepare(const Everything& selection);
  // In exact_threshold.cc:
  void find_exact_threshold(std::uint64_t wanted, std::uint64_t more);
  MagnitudeBits likely_below(std::uint64_t wanted) noexcept;
  bool rank_candidates(std::uint64_t wanted);
  void rank_all(std::uint64_t wanted) noexcept;
  void settle_ties(std::uint64_t among_the_largest);
  void measure_bins() noexcept;

  static std::uint64_t draw_below(double ratio);
  std::uint64_t key_of_draw(std::uint64_t step, std::size_t index) const;
  Rule rule_of(std::size_t index) const;
  std::span<MagnitudeBits> thresholds_of(const Slice& slice) noexcept;
  void code_values(std::size_t index, SliceBuffers& buffers, std::span<const std::uint16_t> offsets,
                   std::span<float> values, SliceOutcome& outcome) noexcept;
  void make_ternary(const Slice& slice, std::span<const std::uint16_t> offsets, std::span<float> values,
                    SliceOutcome& outcome) const noexcept;
  double scale_of(const Slice& slice, const Segment& segment, std::span<const float> values) const noexcept;
  std::size_t coded_bytes(const Slice& slice, std::span<const std::uint16_t> offsets,
                          const SliceOutcome& outcome) const noexcept;

  const Compressor compressor_;
  const Layout layout_;
  const bool codes_after_all_;
  std::vector<float> residual_;         // empty if the compressor keeps none
  std::vector<float> velocity_;         // empty if the compressor has no momentum
  std::vector<float> result_residual_;  // empty if results are not coded, or the compressor keeps no residual
  StepState state_;

  // What belongs to the present step, or, between steps, to the last one.
  std::span<const float> gradient_;
  int rank_ = 0;
  float factor_ = 1;
  MagnitudeBits threshold_ = 1, lower_threshold_ = 0;
  std::uint64_t wanted_ = 0, more_ties_ = 0, draw_below_ = 0;
  bool found_exactly_ = false;
  std::vector<SliceOutcome> outcomes_;         // one for each slice
  std::vector<MagnitudeBits> bin_thresholds_;  // one for each bin
  std::size_t most_scales_ = 0;                // of a slice; 0: values are not quantised
  std::unique_ptr<float[]> scales_;            // of the buckets; each slice has room for most_scales_
  std::vector<double> layer_scales_;           // one for each layer; only for codes_after_all()
  /// A top-k may take only some of the elements that are equal to the threshold. It takes all of them
  /// in the slices before this one, in this slice those before tie_ends_[0], and none in later slices.
  std::size_t tie_slice_ = 0;
  std::array<std::uint32_t, 2> tie_ends_{};
  std::array<MagnitudeBits, 2> tie_thresholds_{};

  MagnitudeRank rank_of_magnitudes_;
  SliceBuffers own_buffers_;               // for what begin_step() does
  std::vector<MagnitudeBits> magnitudes_;  // of one slice
  // Candidates for the largest magnitudes, and where those of each slice end; no ends: all were ranked.
  std::vector<MagnitudeBits> candidates_;
  std::vector<std::size_t> candidate_ends_;
};

}  // namespace nzcl::compress
