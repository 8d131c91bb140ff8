#include "runtime/kernels/packed_output.h"

#include <hwy/cache_control.h>

#include <algorithm>
#include <cstring>

#ifndef NZCL_KERNELS_PACKED_OUTPUT_ONCE
#define NZCL_KERNELS_PACKED_OUTPUT_ONCE
namespace nzcl {
/// Copies of fewer bytes go through the caches. A short copy has many lines that it covers only in part, and
/// storing a part of a line past the caches is slow.
inline constexpr std::size_t kLong = 2048;
}  // namespace nzcl
#endif

// Highway compiles the part above HWY_ONCE once per instruction set; the order of these lines matters.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/kernels/packed_output.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace nzcl::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// How many elements lie before the first address from `to` on at which an aligned vector can be stored.
template <typename T>
HWY_INLINE std::size_t before_aligned(const T* to, std::size_t vector_bytes) {
  const std::size_t over = reinterpret_cast<std::uintptr_t>(to) % vector_bytes;
  return over == 0 ? 0 : (vector_bytes - over) / sizeof(T);
}

void copy_long(const std::byte* from, std::byte* to, std::size_t bytes) {
  const hn::ScalableTag<std::uint8_t> d;
  const std::size_t step = hn::Lanes(d), head = std::min(bytes, before_aligned(to, step));
  std::memcpy(to, from, head);
  std::size_t i = head;
  for (; i + step <= bytes; i += step) {
    hn::Stream(hn::LoadU(d, reinterpret_cast<const std::uint8_t*>(from + i)), d,
               reinterpret_cast<std::uint8_t*>(to + i));
  }
  std::memcpy(to + i, from + i, bytes - i);
  hwy::FlushStream();
}

/// `T` is the unsigned type of the same size as the index type. The values fit the index type, so their bits
/// are the same.
template <typename T>
HWY_INLINE void write_indices_as(const std::uint16_t* offsets, std::size_t count, std::uint64_t first,
                                 T* to) {
  const hn::ScalableTag<std::uint32_t> d32;
  const hn::Rebind<std::uint16_t, decltype(d32)> d16;
  const std::size_t step = hn::Lanes(d32);
  const bool aligned = reinterpret_cast<std::uintptr_t>(to) % sizeof(T) == 0;
  std::size_t i = aligned && count * sizeof(T) >= kLong ? before_aligned(to, step * sizeof(T)) : count;
  i = std::min(i, count);
  for (std::size_t k = 0; k < i; ++k) to[k] = static_cast<T>(first + offsets[k]);
  if (i == count) return;
  if constexpr (sizeof(T) == 4) {
    const auto base = hn::Set(d32, static_cast<std::uint32_t>(first));
    for (; i + step <= count; i += step) {
      const auto v = hn::Add(hn::PromoteTo(d32, hn::LoadU(d16, offsets + i)), base);
      hn::Stream(v, d32, reinterpret_cast<std::uint32_t*>(to + i));
    }
  } else {
    const hn::ScalableTag<std::uint64_t> d64;
    const hn::Rebind<std::uint32_t, decltype(d64)> half32;
    const hn::Rebind<std::uint16_t, decltype(d64)> quarter16;
    const std::size_t lanes = hn::Lanes(d64);
    const auto base = hn::Set(d64, first);
    for (; i + lanes <= count; i += lanes) {
      const auto wide = hn::PromoteTo(d64, hn::PromoteTo(half32, hn::LoadU(quarter16, offsets + i)));
      hn::Stream(hn::Add(wide, base), d64, reinterpret_cast<std::uint64_t*>(to + i));
    }
  }
  for (; i < count; ++i) to[i] = static_cast<T>(first + offsets[i]);
  hwy::FlushStream();
}

void indices_32(const std::uint16_t* offsets, std::size_t count, std::uint64_t first, std::uint32_t* to) {
  write_indices_as(offsets, count, first, to);
}
void indices_64(const std::uint16_t* offsets, std::size_t count, std::uint64_t first, std::uint64_t* to) {
  write_indices_as(offsets, count, first, to);
}

}  // namespace nzcl::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nzcl {

HWY_EXPORT(copy_long);
HWY_EXPORT(indices_32);
HWY_EXPORT(indices_64);

void copy_to_memory(std::span<const std::byte> from, std::byte* to) noexcept {
  if (from.size() >= kLong) {
    HWY_DYNAMIC_DISPATCH(copy_long)(from.data(), to, from.size());
  } else if (!from.empty()) {
    std::memcpy(to, from.data(), from.size());
  }
}

void write_indices(std::span<const std::uint16_t> offsets, std::uint64_t first, const IndexBuffer& to,
                   std::size_t at) noexcept {
  // int32 and uint32 have the same bits here, because every index fits both.
  if (to.type() == IndexType::int64) {
    HWY_DYNAMIC_DISPATCH(indices_64)
    (offsets.data(), offsets.size(), first, static_cast<std::uint64_t*>(to.data()) + at);
  } else {
    HWY_DYNAMIC_DISPATCH(indices_32)
    (offsets.data(), offsets.size(), first, static_cast<std::uint32_t*>(to.data()) + at);
  }
}

}  // namespace nzcl
#endif  // HWY_ONCE
