// What a rank says in place of a contribution when it has refused its caller's request.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#include "nzcl/error.h"

namespace nzcl::wire {

/// The longest text of a refusal, in bytes. The smallest slot has room for it beside a header, an operation
/// record and the largest bitmap.
inline constexpr std::size_t kMostRefusalText = 240;

/// Who refused a request, and why. It has a fixed size, so that exchanges can keep it without allocating.
class Refusal {
 public:
  Refusal() = default;
  /// Longer texts are cut. The text may come from a peer and hold any bytes.
  Refusal(std::uint16_t rank, std::uint16_t code, std::string_view text)
      : rank_(rank), code_(code), size_(static_cast<std::uint16_t>(std::min(text.size(), kMostRefusalText))) {
    std::memcpy(text_.data(), text.data(), size_);
  }

  std::uint16_t rank() const { return rank_; }
  std::uint16_t code() const { return code_; }  // an nzcl::ErrorCode
  std::string_view text() const { return {text_.data(), size_}; }
  std::uint32_t bytes() const { return size_; }

 private:
  std::uint16_t rank_ = 0, code_ = static_cast<std::uint16_t>(ErrorCode::invalid_argument), size_ = 0;
  std::array<char, kMostRefusalText> text_{};
};

/// Whether a peer's number is one of the codes with which a rank can refuse a request.
constexpr bool is_error_code(std::uint16_t code) {
  return code >= static_cast<std::uint16_t>(ErrorCode::invalid_argument) &&
         code <= static_cast<std::uint16_t>(ErrorCode::internal);
}

}  // namespace nzcl::wire
