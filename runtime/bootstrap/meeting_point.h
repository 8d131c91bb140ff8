// How member 0 writes down where it listens, for a file or an exchange through which the others learn it.
#pragma once

#include <optional>
#include <string>

#include "runtime/bootstrap/meeting.h"

namespace nzcl::bootstrap {

/// Describes a port of this host.
std::string encode_point(int port, const std::string& secret);
/// The addresses by which this process reaches that port. Returns nothing for another text.
std::optional<MeetingPoint> parse_point(const std::string& text);

}  // namespace nzcl::bootstrap
