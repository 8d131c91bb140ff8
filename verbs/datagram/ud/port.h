// Datagrams over a UD queue pair of an RDMA device.
#pragma once

#include <memory>

#include "verbs/datagram/datagram.h"

namespace nzcl::verbs::ibv {

/// Opens the port that options.device names, as open_port() does. Throws Error{unavailable, system,
/// transport} with advice.
std::unique_ptr<DatagramPort> open_datagram_port(const DatagramOptions& options);

}  // namespace nzcl::verbs::ibv
