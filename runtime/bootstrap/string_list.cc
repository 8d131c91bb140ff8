#include "runtime/bootstrap/string_list.h"

#include <cstdint>
#include <cstring>

#include "nzcl/error.h"

namespace nzcl::bootstrap {

std::string encode_strings(const std::vector<std::string>& strings) {
  std::string text;
  for (const std::string& string : strings) {
    const auto size = static_cast<std::uint32_t>(string.size());
    text.append(reinterpret_cast<const char*>(&size), sizeof size);
    text += string;
  }
  return text;
}

std::vector<std::string> decode_strings(std::string_view text) {
  std::vector<std::string> strings;
  while (!text.empty()) {
    std::uint32_t size = 0;
    if (text.size() >= sizeof size) std::memcpy(&size, text.data(), sizeof size);
    if (text.size() < sizeof size + size)
      throw Error(ErrorCode::mismatch, "a member sent a list of strings that ends too early");
    strings.emplace_back(text.substr(sizeof size, size));
    text.remove_prefix(sizeof size + size);
  }
  return strings;
}

}  // namespace nzcl::bootstrap
