// SipHash of long texts, in four strands at the same time. All instruction sets give the same digests.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/base/siphash.h"

namespace nzcl {

inline constexpr std::size_t kSipStrands = 4;
/// A word for each strand.
inline constexpr std::size_t kSipGroupBytes = kSipStrands * sizeof(std::uint64_t);

/// Writes four digests of `groups` times kSipGroupBytes bytes: digest i is SipHash-2-4 of the number i, as 8
/// bytes, followed by the words i, i + 4, i + 8, ... of the text.
void sip_strands(const std::byte* text, std::size_t groups, const SipKey& key,
                 std::uint64_t* digests) noexcept;

}  // namespace nzcl
