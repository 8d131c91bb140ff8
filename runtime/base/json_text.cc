#include "runtime/base/json_text.h"

#include <nlohmann/json.hpp>

namespace nzcl {

using nlohmann::json;

std::string json_text(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string valid_utf8(std::string_view text) { return json::parse(json_text(text)).get<std::string>(); }

}  // namespace nzcl
