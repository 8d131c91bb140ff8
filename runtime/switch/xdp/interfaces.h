// Network interfaces by name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace nzcl::tools::xdp {

struct Interface {
  std::string name;
  std::uint32_t index = 0;
  std::size_t mtu = 0;
};

/// Throws Error{invalid_argument, system}.
Interface find_interface(const std::string& name);

}  // namespace nzcl::tools::xdp
