// What the parsers of frames have in common: they take fields from JSON of another process, one by one.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "nzcl/error.h"
#include "runtime/base/failure.h"

namespace nzcl::bootstrap {

[[noreturn]] inline void reject_field(const char* what, const std::string& why) {
  throw Error(ErrorCode::mismatch,
              fmt::format("a member sent {} that this version does not understand: {}", what, why));
}

/// Returns read(json) for the parsed text. A text from which read() cannot take what it asks for is refused.
template <typename Read>
auto read_json(const char* what, std::string_view text, Read read) {
  try {
    return read(nlohmann::json::parse(text));
  } catch (const nlohmann::json::exception& e) {
    reject_field(what, e.what());
  }
}

/// An integer from `least` to `most`. All other numbers are refused, because a cast would change them
/// unnoticed. `name` is that of a field, or the index of an element.
template <typename Name>
std::int64_t number(const nlohmann::json& j, Name name, std::int64_t least, std::int64_t most) {
  const nlohmann::json& value = j.at(name);
  const bool small = value.is_number_integer() &&
                     !(value.is_number_unsigned() && value.get<std::uint64_t>() > std::uint64_t(INT64_MAX));
  const std::int64_t n = small ? value.get<std::int64_t>() : 0;
  if (!small || n < least || n > most)
    reject_field("a number", fmt::format("{} is not in {}..{}", name, least, most));
  return n;
}

inline Failure read_failure(const nlohmann::json& j) {
  const auto code =
      number(j, "code", static_cast<int>(ErrorCode::invalid_argument), static_cast<int>(ErrorCode::internal));
  return {static_cast<ErrorCode>(code), j.at("text").get<std::string>()};
}

inline std::vector<int> read_positions(const nlohmann::json& j) {
  std::vector<int> all;
  for (std::size_t i = 0; i < j.size(); ++i) all.push_back(static_cast<int>(number(j, i, 0, INT32_MAX)));
  return all;
}

}  // namespace nzcl::bootstrap
