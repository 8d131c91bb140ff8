#include "runtime/kernels/index_stream.h"

#include <algorithm>
#include <limits>

// Highway compiles the part above HWY_ONCE once per instruction set; the order of these lines matters.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/kernels/index_stream.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "runtime/base/cold_memory.h"
#include "runtime/kernels/half-inl.h"

HWY_BEFORE_NAMESPACE();
namespace nzcl::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// How many indices are compared before a branch asks whether any of them was wrong.
constexpr std::size_t kTogether = 128;

/// How far ahead indices are prefetched. It is far, because comparing an index takes little time.
constexpr std::size_t kAhead = 4 * kPrefetchBytes;

/// Returns the first position in [begin, end) for which found(at) is true, or `none`.
template <class Found>
std::size_t first_of(std::size_t begin, std::size_t end, std::size_t none, Found found) {
  for (; begin < end; ++begin) {
    if (found(begin)) return begin;
  }
  return none;
}

/// Whether any position in [begin, end) is less than the one before, or equal to it.
struct Order {
  bool descends, repeats;
};

template <typename T>
HWY_INLINE Order order_of(const T* p, std::size_t begin, std::size_t end) {
  const hn::ScalableTag<T> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  auto descends = hn::Zero(du), repeats = hn::Zero(du);
  std::size_t i = begin;
  for (; i + hn::Lanes(d) <= end; i += hn::Lanes(d)) {
    const auto before = hn::LoadU(d, p + i - 1), here = hn::LoadU(d, p + i);
    descends = hn::Or(descends, hn::BitCast(du, hn::VecFromMask(d, hn::Lt(here, before))));
    repeats = hn::Or(repeats, hn::BitCast(du, hn::VecFromMask(d, hn::Eq(here, before))));
  }
  Order order{!hn::AllTrue(du, hn::Eq(descends, hn::Zero(du))),
              !hn::AllTrue(du, hn::Eq(repeats, hn::Zero(du)))};
  for (; i < end; ++i) order.descends |= p[i] < p[i - 1], order.repeats |= p[i] == p[i - 1];
  return order;
}

/// Returns the first position whose index is not below `limit`; the indices need not ascend. Negative indices
/// are found too, because as unsigned numbers they are above every limit.
template <typename U>
std::size_t first_outside(const U* p, std::size_t count, U limit) {
  const hn::ScalableTag<U> d;
  const auto most = hn::Set(d, static_cast<U>(limit - 1));
  for (std::size_t begin = 0; begin < count; begin += kTogether) {
    const std::size_t end = std::min(count, begin + kTogether);
    auto outside = hn::Zero(d);
    std::size_t i = begin;
    for (; i + hn::Lanes(d) <= end; i += hn::Lanes(d))
      outside = hn::Or(outside, hn::VecFromMask(d, hn::Gt(hn::LoadU(d, p + i), most)));
    if (hn::AllTrue(d, hn::Eq(outside, hn::Zero(d))) && i == end) continue;
    const std::size_t found = first_of(begin, end, count, [&](std::size_t at) { return p[at] >= limit; });
    if (found < count) return found;
  }
  return count;
}

template <typename T>
IndexCheck check(const T* p, std::size_t count, std::uint64_t limit) {
  IndexCheck result{count, count, count};
  for (std::size_t begin = 1; begin < count && result.descent == count; begin += kTogether) {
    const std::size_t end = std::min(count, begin + kTogether);
    prefetch_to_read(reinterpret_cast<const std::byte*>(p + begin) + kAhead, kTogether * sizeof(T));
    const Order order = order_of(p, begin, end);
    if (order.descends)
      result.descent = first_of(begin, end, count, [=](std::size_t at) { return p[at] < p[at - 1]; });
    if (order.repeats && result.duplicate == count)
      result.duplicate = first_of(begin, std::min(end, result.descent), count,
                                  [=](std::size_t at) { return p[at] == p[at - 1]; });
  }
  using U = std::make_unsigned_t<T>;
  const bool ascends = result.descent == count;
  constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<T>::max());
  if (count == 0 || (limit > kMost && !std::is_signed_v<T>)) return result;
  // If the limit is beyond what the type can hold, only negative indices are outside.
  const U most = static_cast<U>(std::min<std::uint64_t>(limit, kMost + 1));
  if (ascends && p[0] >= 0) {
    const auto* const last =
        std::lower_bound(p, p + count, most, [](T index, U bound) { return static_cast<U>(index) < bound; });
    result.outside = static_cast<std::size_t>(last - p);
  } else {
    result.outside = most == 0 ? 0 : first_outside(reinterpret_cast<const U*>(p), count, most);
  }
  return result;
}

/// offsets_in_slice() for 32-bit indices.
void subtract_32(const std::uint32_t* indices, std::size_t count, std::uint32_t first, std::uint16_t* to) {
  const hn::ScalableTag<std::uint32_t> d;
  const auto low = hn::Set(d, 0xffffu), from = hn::Set(d, first);
  std::size_t i = 0;
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d))
    store_u16(d, hn::And(hn::Sub(hn::LoadU(d, indices + i), from), low), to + i);
  for (; i < count; ++i) to[i] = static_cast<std::uint16_t>(indices[i] - first);
}

/// offsets_in_slice() for 64-bit indices. Only their lowest 16 bits matter, and compilers turn this plain
/// loop into vectors that are as good as hand-written ones.
void subtract_64(const std::uint64_t* indices, std::size_t count, std::uint64_t first, std::uint16_t* to) {
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    for (std::size_t k = 0; k < 8; ++k) to[i + k] = static_cast<std::uint16_t>(indices[i + k] - first);
  }
  for (; i < count; ++i) to[i] = static_cast<std::uint16_t>(indices[i] - first);
}

IndexCheck check_i32(const std::int32_t* p, std::size_t n, std::uint64_t limit) { return check(p, n, limit); }
IndexCheck check_u32(const std::uint32_t* p, std::size_t n, std::uint64_t limit) {
  return check(p, n, limit);
}
IndexCheck check_i64(const std::int64_t* p, std::size_t n, std::uint64_t limit) { return check(p, n, limit); }

}  // namespace nzcl::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nzcl {

HWY_EXPORT(check_i32);
HWY_EXPORT(check_u32);
HWY_EXPORT(check_i64);
HWY_EXPORT(subtract_32);
HWY_EXPORT(subtract_64);

IndexCheck check_indices(std::span<const std::int32_t> indices, std::uint64_t limit) noexcept {
  return HWY_DYNAMIC_DISPATCH(check_i32)(indices.data(), indices.size(), limit);
}
IndexCheck check_indices(std::span<const std::uint32_t> indices, std::uint64_t limit) noexcept {
  return HWY_DYNAMIC_DISPATCH(check_u32)(indices.data(), indices.size(), limit);
}
IndexCheck check_indices(std::span<const std::int64_t> indices, std::uint64_t limit) noexcept {
  return HWY_DYNAMIC_DISPATCH(check_i64)(indices.data(), indices.size(), limit);
}

void offsets_in_slice(std::span<const std::int32_t> indices, std::uint64_t first,
                      std::uint16_t* offsets) noexcept {
  HWY_DYNAMIC_DISPATCH(subtract_32)
  (reinterpret_cast<const std::uint32_t*>(indices.data()), indices.size(), static_cast<std::uint32_t>(first),
   offsets);
}
void offsets_in_slice(std::span<const std::uint32_t> indices, std::uint64_t first,
                      std::uint16_t* offsets) noexcept {
  HWY_DYNAMIC_DISPATCH(subtract_32)
  (indices.data(), indices.size(), static_cast<std::uint32_t>(first), offsets);
}
void offsets_in_slice(std::span<const std::int64_t> indices, std::uint64_t first,
                      std::uint16_t* offsets) noexcept {
  HWY_DYNAMIC_DISPATCH(subtract_64)
  (reinterpret_cast<const std::uint64_t*>(indices.data()), indices.size(), first, offsets);
}

}  // namespace nzcl
#endif  // HWY_ONCE
