// Parsers of what members send each other in a meeting and on the control plane. The text comes from another
// process, so every field is checked. README.md shows the layouts.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "nzcl/error.h"
#include "runtime/bootstrap/control.h"

namespace nzcl::bootstrap {

/// Where the hub of the control plane listens. There is at least one host.
struct HubAddress {
  std::vector<std::string> hosts;
  std::string host_id, key;
  int port = 0;
};
/// How a member introduces itself to member 0.
struct StarHello {
  std::string who, session;
  int position = 0, size = 0;
};
/// One message of the control plane.
struct ControlFrame {
  std::string type;
  Failure failure;  // set in frames of the types "abort" and "failed"
};

// All of these throw an Error{mismatch} that says which part of the text this version does not understand.

HubAddress parse_hub_address(const std::string& text);
StarHello parse_star_hello(const std::string& text);
/// The position of the member that calls the hub, as that member states it.
std::size_t parse_control_hello(const std::string& text);
ControlFrame parse_control_frame(const std::string& text);
/// Parses {"code": ..., "text": ...}, which follows the letter of an error frame.
Error parse_error(std::string_view text);

}  // namespace nzcl::bootstrap
