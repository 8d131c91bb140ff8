// Numbers of few bytes: seven bits in each byte, the lowest ones first, and the highest bit of all bytes but
// the last one is set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace nzcl::bootstrap {

inline void put_number(std::string& text, std::uint64_t number) {
  for (; number >= 128; number >>= 7) text += static_cast<char>(number | 128);
  text += static_cast<char>(number);
}

/// Takes a number below 2^35 from the front of `text`, which has no frame of more bytes. Returns nothing if
/// it is larger, or if `text` ends too early.
inline std::optional<std::size_t> take_number(std::string_view& text) {
  std::uint64_t number = 0;
  for (int shift = 0; shift < 35 && !text.empty(); shift += 7) {
    const auto byte = static_cast<unsigned char>(text.front());
    text.remove_prefix(1);
    number |= std::uint64_t{byte & 127u} << shift;
    if (byte < 128) return static_cast<std::size_t>(number);
  }
  return std::nullopt;
}

}  // namespace nzcl::bootstrap
