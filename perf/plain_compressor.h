// Compression in plain loops over the whole tensor, written from runtime/compress/README.md for clarity. What
// nzcl's compressors send is compared with it, bit by bit.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "nzcl/compress.h"

namespace perf {

class PlainCompressor {
 public:
  PlainCompressor(const nzcl::Compressor& compressor, std::vector<nzcl::Layer> layers);
  PlainCompressor(const nzcl::Compressor& compressor, std::uint64_t elements)
      : PlainCompressor(compressor, std::vector<nzcl::Layer>{{.elements = elements}}) {}

  /// One step. Returns what is sent, as a dense tensor with zeros elsewhere.
  std::vector<float> step(std::span<const float> gradient, int rank, int ranks);

  /// Multiplies what is kept, and the threshold that is carried over, by the rate before over this one.
  void set_rate(float rate);

  const std::vector<bool>& selected() const { return selected_; }  ///< in the last step
  const std::vector<float>& residual() const { return residual_; }

 private:
  struct Part {
    std::size_t begin, end, layer;
  };
  std::vector<Part> parts(bool bins) const;
  double ratio(double final_ratio) const;

  void select(const nzcl::AdaComp& selection);
  void select(const nzcl::TopK& selection);
  void select(const nzcl::Threshold& selection);
  void select(const nzcl::RandomK& selection);
  void select(const nzcl::BlockTopK& selection);
  void select(const nzcl::Everything& selection);
  void select_from(float threshold);
  float kth_largest(std::uint64_t k) const;
  float largest(const Part& part) const;

  void code(const nzcl::AsIs& values, int rank);
  void code(const nzcl::Ternary& values, int rank);
  void code(const nzcl::Narrow& values, int rank);
  void code(const nzcl::Qsgd& values, int rank);
  void code_bucket(std::span<const std::size_t> where, const nzcl::Qsgd& values, std::uint64_t key,
                   std::size_t first);

  const nzcl::Compressor compressor_;
  const std::vector<nzcl::Layer> layers_;
  std::uint64_t steps_ = 0;
  std::vector<float> residual_, velocity_, x_, total_, sent_;
  std::vector<bool> selected_;
  float rate_ = 0;
  float threshold_ = 0, last_ = 0, drift_ = 0;  // of the streaming top-k
  std::uint64_t wanted_ = 0, since_exact_ = 0;
};

}  // namespace perf
