// Compression of dense gradients: what is sent of a tensor, and the state that a tensor keeps from step to
// step. runtime/compress/README.md has the formulas and their sources.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "nzcl/export.h"
#include "nzcl/types.h"

namespace nzcl {

// ---- Selections: which elements are sent. G is the gradient plus what was kept from earlier steps.

/// Adaptive residual compression (Chen et al., AAAI 2018). In each bin of `bin` consecutive elements, an
/// element is sent if adding the latest gradient once more would bring it to the largest |G| of the bin.
/// There is nothing to tune but the bin: 50 for convolutions, 500 for other layers.
struct AdaComp {
  std::uint32_t bin = 500;  ///< elements, 4 to 16,383; a layer may have its own
  /// The scale of Ternary values. true: the mean of the largest |G| of all bins of the layer, so that nothing
  /// is sent before the whole gradient has been read. false: the mean over the bins of each slice.
  bool exact_scale = true;
};
/// The elements with the largest |G| of the tensor.
struct TopK {
  double ratio = 0.01;  ///< share of the elements, above 0 and at most 1
  /// true: exactly that share, or all that are not zero if these are fewer. false: a threshold is carried
  /// from step to step and corrected by counts, which takes one pass; where many magnitudes are equal to it,
  /// the next step's is exact again.
  bool exact = false;
  std::uint32_t refresh = 64;  ///< steps after which the threshold is found anew; at least 1
};
/// The elements with |G| >= value.
struct Threshold {
  float value = 1e-3f;  ///< at least 0, finite
};
/// Elements drawn at random, the same on every rank, because all have the same seed (Compressor::seed) and
/// have done the same number of steps. Their indices do not travel. Ranks whose numbers of steps differ are
/// refused with Error{mismatch}, unless the tensor is so small that it travels in one message, with indices.
struct RandomK {
  double ratio = 0.01;  ///< above 0 and at most 1; the number that is drawn varies around it
};
/// All elements of the blocks with the largest max |G|.
struct BlockTopK {
  double ratio = 0.01;        ///< share of the blocks, above 0 and at most 1
  std::uint32_t block = 256;  ///< elements, 4 to 16,383
};
/// Every element that is not zero.
struct Everything {};

using Selection = std::variant<AdaComp, TopK, Threshold, RandomK, BlockTopK, Everything>;

// ---- Value codecs: how coarsely they are sent.

/// float32, unchanged.
struct AsIs {};
/// A sign and a scale that is common to a layer or slice.
struct Ternary {};
/// float16 or bfloat16, rounded to nearest even. Beyond the range of the type it becomes an infinity, which
/// CompressionReport::non_finite counts.
struct Narrow {
  DataType type = DataType::bfloat16;
};
/// Stochastic and unbiased (QSGD, Alistarh et al., NeurIPS 2017).
struct Qsgd {
  int bits = 4;                 ///< 2, 4 or 8
  std::uint32_t bucket = 1024;  ///< consecutive values with a common scale, 16 to 65,536
  /// Keep the rounding errors in the residual. They need not become smaller from step to step, so this can
  /// diverge with few bits and large buckets.
  bool feedback = false;
};

using ValueCodec = std::variant<AsIs, Ternary, Narrow, Qsgd>;

/// How the owner of a part of the tensor codes the sums that go back to all ranks. It keeps the rounding
/// errors in its own state, and adds them to the sums of later steps. So that they cannot grow, Qsgd takes 8
/// bits with buckets up to 64,516 values, or 4 with buckets up to 196; its `feedback` says nothing here.
using ResultCodec = std::variant<AsIs, Narrow, Qsgd>;

/// What becomes of a gradient with NaNs or infinities.
enum class NonFinite : std::uint8_t {
  pass,  ///< They are always sent, so that the result has them on every rank; they never enter the residual.
  error  ///< The call throws Error{invalid_argument} and changes nothing. Takes another pass over the
         ///< gradient.
};

/// What to send of a tensor. The same on every rank: ranks that differ are refused with Error{mismatch}.
struct Compressor {
  Selection selection = AdaComp{};
  ValueCodec values = AsIs{};
  /// With anything but AsIs, results are coded too. All ranks get the same bits. Not with dedicated
  /// aggregators, which have no states, nor with the switch exchange: such a call throws
  /// Error{unsupported}. Results of tensors that travel in one message, those of a single rank, and those of
  /// a hierarchy are never coded.
  ResultCodec results = AsIs{};
  /// Momentum correction (DGC, Lin et al., arXiv 1712.01887): momentum is applied here, before the selection,
  /// and what is sent loses it. The optimizer must then use none. 0: off; below 1. Refused with the selection
  /// Everything, which would keep none.
  float momentum = 0;
  /// Local gradient clipping (DGC): a gradient with a 2-norm above clip / sqrt(ranks) is scaled down to it
  /// before it is added to the residual. The norm is that of what one state has, so not of a model whose
  /// tensors have states of their own. 0: off.
  float clip = 0;
  /// Steps in which the ratio comes down to its value, in four stages (DGC). Only for selections that have a
  /// ratio. 0: off.
  std::uint32_t warm_up = 0;
  /// false: what is not sent is dropped, and so are the errors of results. Only to show what the residual is
  /// good for.
  bool residual = true;
  NonFinite non_finite = NonFinite::pass;
  std::uint64_t seed = 1;
};

/// Reads a compressor from text: SELECTION[+VALUES][,NAME=VALUE]..., for example "adacomp:500",
/// "topk:0.01+qsgd:4" or "topk:0.001:exact,momentum=0.9,warm_up=1000".
/// Selections: adacomp[:BIN[:slice]] (with +ternary unless VALUES are given; "slice" is exact_scale = false),
/// topk[:RATIO[:exact]], threshold:VALUE, randomk[:RATIO], blocktopk[:RATIO[:BLOCK]], all,
/// and qsgd:..., fp16 and bf16 alone, which stand for all+...
/// Values: asis, ternary, fp16, bf16, qsgd[:BITS[:BUCKET[:feedback]]].
/// Names: momentum, clip, warm_up, residual (0 or 1), error (1 for NonFinite::error), seed, refresh (topk),
/// and results, which is one of asis, fp16, bf16 and qsgd[:BITS[:BUCKET]], 8 bits by default there. Throws
/// Error{invalid_argument} that says what it did not understand.
[[nodiscard]] NZCL_API Compressor compressor_from_text(std::string_view text);
/// The other way: a text that gives the same compressor.
[[nodiscard]] NZCL_API std::string to_text(const Compressor& compressor);

/// A part of a tensor. Layers lie one behind the other, without gaps.
struct Layer {
  std::uint64_t elements = 0;
  std::uint32_t bin = 0;  ///< AdaComp's bin for this layer; 0: the compressor's
};

/// What a state has done. Figures are those of the last step unless said otherwise.
struct CompressionReport {
  std::uint64_t steps = 0;       ///< since the state was made or reset
  std::uint64_t elements = 0;    ///< of the tensor
  std::uint64_t sent = 0;        ///< elements that were sent
  std::uint64_t sent_total = 0;  ///< in all steps
  /// NaNs and infinities among what was sent, with what is beyond the range of a narrower type. Where Qsgd
  /// makes NaNs of a whole bucket, only those count that the bucket was given.
  std::uint64_t non_finite = 0;
  /// After an allreduce: the bytes that this rank wrote upwards, to the other owners, with all headers. What
  /// this rank owns itself does not travel. After compress(), and while an allreduce is in flight: about what
  /// the index sets and values of the whole tensor take in their codes, without headers.
  std::uint64_t coded_bytes = 0;
  double element_ratio = 0;  ///< elements / sent; 0 if nothing was sent
  /// The bytes of the same part of the tensor as float32, over coded_bytes; 0 if nothing was sent.
  double coded_ratio = 0;
  double residual_norm = 0;  ///< 2-norm of the residual, as it is now
  /// The same of the errors of coded results that this rank holds as an owner; 0 while an allreduce is in
  /// flight.
  double result_residual_norm = 0;
  float threshold = 0;  ///< TopK, Threshold, BlockTopK: the |G| from which elements or blocks were sent
  float scale = 0;      ///< Ternary: the mean over layers or slices
};

/// A gradient as it is sent: values[i] belongs to element indices[i]; indices ascend.
struct CompressedGradient {
  std::span<const std::int64_t> indices;
  std::span<const float> values;
};

/// Any memory of a GPU, for what is to be on the same one.
struct GpuOf {
  const void* memory = nullptr;
};

class CompressorStateAccess;

/// What one rank keeps of one tensor from step to step: the residual, momentum, thresholds and the number of
/// the step. Movable. One thread at a time may use it. The memory is that of the residual, 4 bytes for each
/// element (as much again with momentum, and with coded results), and buffers that grow to what a step sends.
///
/// A state that an allreduce uses belongs to nzcl until that has completed: calls that would change it, and
/// save(), throw Error{invalid_usage}, and the destructor waits.
class NZCL_API CompressorState {
 public:
  /// Throws Error{invalid_argument} if the compressor is out of its ranges or the tensor has 2^40 elements or
  /// more, and Error{system} if there is no memory for the state.
  CompressorState(const Compressor& compressor, std::span<const Layer> layers);
  /// A tensor that is one layer.
  CompressorState(const Compressor& compressor, std::uint64_t elements);
  /// The same with residual and momentum on a GPU, for gradients that are there (nzcl/GPU.md). Throws
  /// Error{unsupported} that names what such a state does not take, and what register_buffer() throws for
  /// memory of a GPU. compress() and residual() throw Error{unsupported}.
  CompressorState(const Compressor& compressor, std::span<const Layer> layers, GpuOf on);
  CompressorState(const Compressor& compressor, std::uint64_t elements, GpuOf on);
  ~CompressorState();
  CompressorState(CompressorState&&) noexcept;
  CompressorState& operator=(CompressorState&&) noexcept;

  [[nodiscard]] const Compressor& compressor() const;
  [[nodiscard]] std::uint64_t elements() const;

  /// Compresses one gradient without sending it, for callers who have their own way to sum. This is a step:
  /// what is not in the result is in the residual. The result is valid until the next call. `gradient` has
  /// elements() elements; `rank` gives ranks different random numbers for Qsgd; `ranks` is for clipping.
  CompressedGradient compress(std::span<const float> gradient, int rank = 0, int ranks = 1);

  /// Says with which learning rate the results of the next steps will be used, so that what is sent late
  /// counts with the rate of the step that it comes from (Karimireddy et al., ICML 2019, algorithm 2, whose
  /// residual has the rate in it): where the rate changes, what is kept is multiplied by the old rate over
  /// the new one. Only ratios of rates matter. Before the first call nothing is multiplied. All ranks give
  /// the same.
  ///
  /// Takes a pass over the residual, and over the errors of coded results, if the rate is another one than
  /// before. Throws Error{invalid_argument} for a rate that is neither 0 nor from 1e-15 to 1e15. A rate of 0,
  /// as the first step of a warm-up or the last of a cosine has, changes nothing: what is kept stays in units
  /// of the rate before.
  void set_rate(float rate);
  [[nodiscard]] float rate() const;  ///< the last one that was set and is not 0; 0: none was

  /// Everything that lives from step to step, to be kept with an engine's checkpoint. The bytes are those of
  /// this machine (little-endian), for a state with the same compressor and layers.
  [[nodiscard]] std::vector<std::byte> save() const;
  /// Continues where save() was called, bit by bit. Throws Error{invalid_argument}, and changes nothing, for
  /// bytes that are not those of such a state.
  void restore(std::span<const std::byte> saved);
  /// As newly made: no residual, no momentum, step 0.
  void reset();

  [[nodiscard]] CompressionReport report() const;  ///< reads the whole residual
  [[nodiscard]] std::span<const float> residual() const;
  /// The errors of coded results that this rank holds as an owner. Empty if results are not coded, or their
  /// errors not kept. Valid while no allreduce uses the state.
  [[nodiscard]] std::span<const float> result_residual() const;

 private:
  friend class CompressorStateAccess;
  class Impl;
  Impl& impl() const;
  std::unique_ptr<Impl> impl_;
};

/// An allreduce of what the ranks' states send of their gradients. Every rank passes the same count, op and
/// compressor.
struct CompressedAllreduceRequest {
  CompressorState* state = nullptr;  ///< this rank's for this tensor
  /// state->elements() elements, anywhere; read before the call returns. No operation in flight may write
  /// them. For a state on a GPU they are on that one, and are read in the order of `stream`.
  const float* input = nullptr;
  /// The result: state->elements() elements inside a registered buffer. It may equal input, but must not
  /// overlap it otherwise. With a state on a GPU, it may be there too.
  float* output = nullptr;
  ReduceOp op = ReduceOp::sum;          ///< sum or avg: over all ranks, of what was sent
  std::chrono::nanoseconds timeout{0};  ///< as in AllreduceRequest
  std::uint64_t tag = 0;                ///< as in AllreduceRequest
  void* stream = nullptr;               ///< for a state on a GPU: as in AllreduceRequest
};

}  // namespace nzcl
