#include "runtime/kernels/packed_output.h"

#include <hwy/cache_control.h>

#include <algorithm>
#include <cstring>

#include "nzcl/indices.h"
#include "runtime/kernels/stream_copy.h"

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

/// Loads as many offsets as the tag's vector has lanes.
template <class D, typename Offset>
HWY_INLINE hn::Vec<D> load_offsets(D d, const Offset* p) {
  const hn::Rebind<Offset, D> narrow;
  if constexpr (sizeof(hn::TFromD<D>) == sizeof(Offset)) {
    return hn::LoadU(d, p);
  } else if constexpr (sizeof(hn::TFromD<D>) == 4 * sizeof(Offset)) {
    const hn::Rebind<std::uint32_t, D> half;
    return hn::PromoteTo(d, hn::PromoteTo(half, hn::LoadU(narrow, p)));
  } else {
    return hn::PromoteTo(d, hn::LoadU(narrow, p));
  }
}

/// `T` is the unsigned type of the same size as the index type. The values fit the index type, so their bits
/// are the same.
template <typename T, typename Offset>
HWY_INLINE void write_indices_as(const Offset* offsets, std::size_t count, std::uint64_t first, T* to,
                                 StoreTo where) {
  const hn::ScalableTag<T> d;
  const std::size_t step = hn::Lanes(d);
  const bool streams = where == StoreTo::memory && count * sizeof(T) >= kLong &&
                       reinterpret_cast<std::uintptr_t>(to) % sizeof(T) == 0;
  std::size_t i = streams ? std::min(count, before_aligned(to, step * sizeof(T))) : 0;
  for (std::size_t k = 0; k < i; ++k) to[k] = static_cast<T>(first + offsets[k]);
  const auto base = hn::Set(d, static_cast<T>(first));
  if (streams) {
    for (; i + step <= count; i += step) hn::Stream(hn::Add(load_offsets(d, offsets + i), base), d, to + i);
  } else {
    for (; i + step <= count; i += step) hn::StoreU(hn::Add(load_offsets(d, offsets + i), base), d, to + i);
  }
  for (; i < count; ++i) to[i] = static_cast<T>(first + offsets[i]);
  if (streams) hwy::FlushStream();
}

/// Writes the indices in the type of the buffer. int32 and uint32 have the same bits here, because every
/// index fits both.
template <typename Offset>
HWY_INLINE void indices_in(const Offset* offsets, std::size_t count, std::uint64_t first, IndexType type,
                           void* to, std::size_t at, StoreTo where) {
  if (type == IndexType::int64) {
    write_indices_as(offsets, count, first, static_cast<std::uint64_t*>(to) + at, where);
  } else {
    write_indices_as(offsets, count, first, static_cast<std::uint32_t*>(to) + at, where);
  }
}

void indices_of_16(const std::uint16_t* offsets, std::size_t count, std::uint64_t first, IndexType type,
                   void* to, std::size_t at, StoreTo where) {
  indices_in(offsets, count, first, type, to, at, where);
}
void indices_of_32(const std::uint32_t* offsets, std::size_t count, std::uint64_t first, IndexType type,
                   void* to, std::size_t at, StoreTo where) {
  indices_in(offsets, count, first, type, to, at, where);
}

}  // namespace nzcl::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nzcl {

HWY_EXPORT(indices_of_16);
HWY_EXPORT(indices_of_32);

void write_values(std::span<const std::byte> from, std::byte* to, StoreTo where) noexcept {
  if (where == StoreTo::memory && from.size() >= kLong) {
    copy_past_caches(to, from.data(), from.size());
  } else if (!from.empty()) {
    std::memcpy(to, from.data(), from.size());
  }
}

void write_indices(std::span<const std::uint16_t> offsets, std::uint64_t first, const IndexBuffer& to,
                   std::size_t at, StoreTo where) noexcept {
  HWY_DYNAMIC_DISPATCH(indices_of_16)(offsets.data(), offsets.size(), first, to.type(), to.data(), at, where);
}
void write_indices(std::span<const std::uint32_t> offsets, std::uint64_t first, const IndexBuffer& to,
                   std::size_t at, StoreTo where) noexcept {
  HWY_DYNAMIC_DISPATCH(indices_of_32)(offsets.data(), offsets.size(), first, to.type(), to.data(), at, where);
}

}  // namespace nzcl
#endif  // HWY_ONCE
