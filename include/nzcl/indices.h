// Lists of indices of any of the types that sparse tensors use.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <ranges>
#include <type_traits>

#include "nzcl/types.h"

namespace nzcl {

template <typename T>
concept Index =
    std::same_as<T, std::int32_t> || std::same_as<T, std::uint32_t> || std::same_as<T, std::int64_t>;

/// The IndexType of int32_t, uint32_t or int64_t.
template <Index T>
inline constexpr IndexType kIndexType = std::same_as<T, std::int32_t>    ? IndexType::int32
                                        : std::same_as<T, std::uint32_t> ? IndexType::uint32
                                                                         : IndexType::int64;

/// A list of indices of one of these types, as a view: it owns nothing. Made from a vector, an array or a
/// span of them, or from a pointer, a size and a type.
class IndexSpan {
 public:
  constexpr IndexSpan() = default;
  constexpr IndexSpan(const void* data, std::size_t size, IndexType type)
      : data_(data), size_(size), type_(type) {}
  template <std::ranges::contiguous_range Range>
  requires Index<std::remove_cv_t<std::ranges::range_value_t<Range>>> && std::ranges::sized_range<Range>
  constexpr IndexSpan(const Range& range)  // NOLINT(google-explicit-constructor): as for std::span
      : data_(std::ranges::data(range)),
        size_(std::ranges::size(range)),
        type_(kIndexType<std::remove_cv_t<std::ranges::range_value_t<Range>>>) {}

  [[nodiscard]] constexpr const void* data() const noexcept { return data_; }
  [[nodiscard]] constexpr std::size_t size() const noexcept { return size_; }
  [[nodiscard]] constexpr IndexType type() const noexcept { return type_; }
  [[nodiscard]] constexpr bool empty() const noexcept { return size_ == 0; }

 private:
  const void* data_ = nullptr;
  std::size_t size_ = 0;
  IndexType type_ = IndexType::int64;
};

/// Memory for indices of one of these types. It owns nothing.
class IndexBuffer {
 public:
  constexpr IndexBuffer() = default;
  constexpr IndexBuffer(void* data, IndexType type) : data_(data), type_(type) {}
  template <Index T>
  constexpr IndexBuffer(T* data)  // NOLINT(google-explicit-constructor)
      : data_(data), type_(kIndexType<T>) {}

  [[nodiscard]] constexpr void* data() const noexcept { return data_; }
  [[nodiscard]] constexpr IndexType type() const noexcept { return type_; }

 private:
  void* data_ = nullptr;
  IndexType type_ = IndexType::int64;
};

}  // namespace nzcl
