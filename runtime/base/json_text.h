// JSON from texts that may hold any bytes: the system's error messages, paths, and names that users have
// chosen.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <string_view>

namespace nzcl {

/// Writes `value` as JSON text. Bytes that are not UTF-8 become U+FFFD. By default nlohmann's dump() throws
/// an exception for them, which is not an nzcl::Error, and which ends the process if it leaves a thread.
std::string json_text(const nlohmann::json& value);

/// Returns `text` with U+FFFD for every byte that is not UTF-8. This is the text that a receiver of
/// json_text(text) reads.
std::string valid_utf8(std::string_view text);

}  // namespace nzcl
