// Datagrams over UDP.
#pragma once

#include <memory>

#include "verbs/datagram/datagram.h"

namespace nzcl::verbs::udp {

/// Opens a free UDP port number on the interface that suits the options. Throws Error{unavailable, system}
/// with advice.
std::unique_ptr<DatagramPort> open_datagram_port(const DatagramOptions& options);

}  // namespace nzcl::verbs::udp
