// Opens datagram ports by their kind.
#include "nzcl/error.h"
#include "verbs/datagram/datagram.h"
#include "verbs/datagram/ud/port.h"
#include "verbs/datagram/udp/port.h"

namespace nzcl::verbs {

std::unique_ptr<DatagramPort> open_datagram_port(const DatagramOptions& options) {
  switch (options.kind) {
    case DatagramKind::udp:
      return udp::open_datagram_port(options);
    case DatagramKind::ud:
      return ibv::open_datagram_port(options);
  }
  throw Error(ErrorCode::internal, "datagrams of a kind that does not exist");
}

}  // namespace nzcl::verbs
