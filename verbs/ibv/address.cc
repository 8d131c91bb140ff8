#include "verbs/ibv/address.h"

#include <fmt/format.h>
#include <infiniband/verbs.h>

#include <cstring>

#include "nzcl/error.h"

namespace nzcl::verbs::ibv {

std::string EndpointAddress::encode() const { return {reinterpret_cast<const char*>(this), sizeof *this}; }

EndpointAddress EndpointAddress::decode(const std::string& text) {
  EndpointAddress address;
  if (text.size() != sizeof address)
    throw Error(ErrorCode::transport,
                fmt::format("ibverbs: an address has {} bytes instead of {}", text.size(), sizeof address));
  std::memcpy(static_cast<void*>(&address), text.data(), sizeof address);
  if (address.calls == 0 || address.calls > kMost24Bits || address.ethernet > 1 ||
      address.mtu < IBV_MTU_256 || address.mtu > IBV_MTU_4096) {
    throw Error(ErrorCode::transport,
                fmt::format("ibverbs: an address has a value out of range: queue pair {}, MTU code {}, link "
                            "layer {}",
                            address.calls, address.mtu, address.ethernet));
  }
  return address;
}

}  // namespace nzcl::verbs::ibv
