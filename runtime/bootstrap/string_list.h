// A list of byte strings as one byte string, so that one round of a meeting's allgather can carry the list.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace nzcl::bootstrap {

/// Each string becomes 4 bytes of length, in this machine's byte order, and then its bytes.
std::string encode_strings(const std::vector<std::string>& strings);
/// Throws Error{mismatch} when `text` was not made by encode_strings().
std::vector<std::string> decode_strings(std::string_view text);

}  // namespace nzcl::bootstrap
