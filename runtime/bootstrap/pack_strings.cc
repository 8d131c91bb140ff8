#include "runtime/bootstrap/pack_strings.h"

#include <cstdint>
#include <cstring>

#include "nzcl/error.h"

namespace nzcl::bootstrap {

std::string pack_strings(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) {
    const auto size = static_cast<std::uint32_t>(part.size());
    text.append(reinterpret_cast<const char*>(&size), sizeof size);
    text += part;
  }
  return text;
}

std::vector<std::string> unpack_strings(std::string_view text) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    std::uint32_t size = 0;
    if (text.size() >= sizeof size) std::memcpy(&size, text.data(), sizeof size);
    if (text.size() < sizeof size + size)
      throw Error(ErrorCode::mismatch, "a member sent a list of texts that is cut short");
    parts.emplace_back(text.substr(sizeof size, size));
    text.remove_prefix(sizeof size + size);
  }
  return parts;
}

}  // namespace nzcl::bootstrap
