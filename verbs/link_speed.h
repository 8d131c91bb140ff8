// How fast network links are, as the system says it.
#pragma once

#include <cstdint>
#include <string>

namespace nzcl::verbs {

/// The speed of a network interface in Gb/s, from /sys/class/net. 0: there is no such interface, or its
/// driver does not know, as that of the loopback interface and of many virtual ones.
double interface_gbps(const std::string& interface);

/// The same for a text from there, which is in Mb/s and -1 if it is not known. Does no I/O.
double gbps_of_text(const std::string& mbps);

/// The rate at which a port of an RDMA device moves data, in Gb/s, from the codes for speed and width of
/// libibverbs. 0: a code is unknown. Does no I/O.
double port_gbps(std::uint8_t active_speed, std::uint8_t active_width);

}  // namespace nzcl::verbs
