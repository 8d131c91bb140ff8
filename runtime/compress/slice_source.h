// What is sent of a tensor, slice by slice as it is compressed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace nzcl::compress {

/// What is sent of a slice. The spans lead into the source.
struct SliceContent {
  std::span<const std::uint16_t> offsets;  // ascending
  std::span<const float> values;
  std::span<const float> scales;  // of the buckets of values, if they are quantised
};

/// Any thread may call any of these.
class SliceSource {
 public:
  virtual ~SliceSource() = default;
  /// Does for the slice what can be done now, if the caller can do anything for it. It may not be ready after
  /// that.
  virtual void make(std::size_t slice) noexcept = 0;
  virtual bool ready(std::size_t slice) const noexcept = 0;
  /// Precondition: ready().
  virtual SliceContent content(std::size_t slice) const noexcept = 0;
  /// For RandomK: whether the slice has exactly what all ranks draw, and what they draw in this step of the
  /// elements [begin, end) of it.
  virtual bool has_the_draw(std::size_t slice) const noexcept = 0;
  virtual std::size_t draw(std::size_t slice, std::uint32_t begin, std::uint32_t end,
                           std::span<std::uint16_t> offsets) const noexcept = 0;
};

}  // namespace nzcl::compress
