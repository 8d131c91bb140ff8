#include "runtime/switch/xdp/interfaces.h"

#include <fmt/format.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "nzcl/error.h"
#include "runtime/switch/xdp/handles.h"

namespace nzcl::tools::xdp {

Interface find_interface(const std::string& name) {
  Interface found{name, ::if_nametoindex(name.c_str()), 0};
  if (found.index == 0)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("there is no network interface \"{}\" (ip link lists them)", name));
  const Descriptor socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  name.copy(request.ifr_name, sizeof request.ifr_name - 1);
  if (::ioctl(socket.fd(), SIOCGIFMTU, &request) != 0)
    throw Error(ErrorCode::system, fmt::format("the MTU of interface {}: {}", name, std::strerror(errno)));
  found.mtu = static_cast<std::size_t>(request.ifr_mtu);
  return found;
}

}  // namespace nzcl::tools::xdp
