// Lists for people: "0, 3, 5".
#pragma once

#include <concepts>
#include <string>
#include <string_view>

namespace nzcl {

inline void append_item(std::string& list, std::string_view item) {
  if (!list.empty()) list += ", ";
  list += item;
}

inline void append_item(std::string& list, std::integral auto number) {
  append_item(list, std::string_view(std::to_string(number)));
}

}  // namespace nzcl
