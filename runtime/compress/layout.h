// How a tensor of layers is cut into slices, segments and bins.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "nzcl/compress.h"
#include "runtime/kernels/elements.h"

namespace nzcl::compress {

/// The part of a layer that lies in one slice.
struct Segment {
  std::uint32_t begin = 0, end = 0;  // offsets in the slice
  std::size_t layer = 0;
  std::size_t first_bin = 0, bins = 0;  // counted from the slice's first bin
};

/// The elements of a tensor that are compressed together.
struct Slice {
  std::uint64_t begin = 0;                      // its first element in the tensor
  std::size_t elements = 0;                     // at most kMostSliceElements
  std::size_t first_bin = 0, bins = 0;          // among the bins of the whole tensor
  std::size_t first_segment = 0, segments = 0;  // among the segments of the whole tensor
};

/// How the tensor is cut. It is computed once for a state and never changes. All slices but the last have
/// kMostSliceElements elements. The first bin of a segment begins where the segment begins, and its last bin
/// may be shorter than the others.
class Layout {
 public:
  /// `bin` is the number of elements in a bin, for layers that do not have a number of their own. With 0 no
  /// layer has bins.
  Layout(std::span<const Layer> layers, std::uint32_t bin);

  std::uint64_t elements() const { return elements_; }
  std::span<const Layer> layers() const { return layers_; }
  std::span<const Slice> slices() const { return slices_; }
  std::span<const Segment> segments(const Slice& slice) const {
    return std::span(segments_).subspan(slice.first_segment, slice.segments);
  }
  std::size_t bins() const { return bin_ends_.size(); }
  /// The offsets in the slice at which its bins end, in ascending order.
  std::span<const std::uint32_t> bin_ends(const Slice& slice) const {
    return std::span(bin_ends_).subspan(slice.first_bin, slice.bins);
  }

 private:
  void add_segment(Slice& slice, Segment segment, std::uint32_t bin);

  std::vector<Layer> layers_;
  std::uint64_t elements_ = 0;
  std::vector<Slice> slices_;
  std::vector<Segment> segments_;
  std::vector<std::uint32_t> bin_ends_;
};

}  // namespace nzcl::compress
