// Several byte strings in one, for the meeting's allgather.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace nzcl::bootstrap {

std::string pack_strings(const std::vector<std::string>& parts);
/// Throws Error{mismatch} when `text` was not made by pack_strings.
std::vector<std::string> unpack_strings(std::string_view text);

}  // namespace nzcl::bootstrap
