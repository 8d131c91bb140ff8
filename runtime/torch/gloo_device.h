// The network device of Gloo's group, which follows nzcl's choice of an interface.
#pragma once

#include <gloo/transport/device.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

namespace nzcl_torch {

/// Where a rank runs, as the ranks tell each other.
struct RankPlace {
  std::string host;                    ///< equal for ranks that reach each other by the loopback interface
  std::vector<std::string> addresses;  ///< of the host, those that other hosts may reach first
};
RankPlace own_place();

using GlooDevices = std::vector<std::shared_ptr<gloo::transport::Device>>;

/// The devices that somebody has named: by GLOO_SOCKET_IFNAME, as for Gloo itself, or else by nzcl's option
/// `interface`, if that is a network interface or its address. Throws if there is no such interface.
GlooDevices named_devices(const std::string& interface);
/// The device that suits: the loopback interface if all ranks are on one host, and else that of the address
/// by which this host reaches another one.
GlooDevices suitable_devices(int rank, std::span<const RankPlace> places);

}  // namespace nzcl_torch
