// How fast the network links between members are taken to be.
#pragma once

#include <string>
#include <vector>

namespace nzcl::engine {

/// The rate of a link in each direction, and how it is known.
struct LinkSpeed {
  enum class Source {
    assumed,  // nobody knows it
    device,   // a device says so
    option,   // a user says so
  };
  double gbps = 0;  // positive, unless it is assumed
  Source source = Source::assumed;

  friend bool operator==(const LinkSpeed&, const LinkSpeed&) = default;
};

/// What a member says of its own link, from the option (0: it says nothing) and from its device (0: it does
/// not know).
LinkSpeed own_link(double option_gbps, double device_gbps);

/// The least speed that any member knows of its own link, or kAssumedGbps if none knows any. All members come
/// to the same, because they have the same list.
LinkSpeed slowest_link(const std::vector<LinkSpeed>& links);

/// For people: "1 Gb/s (as the device says)".
std::string text_of(const LinkSpeed& speed);

}  // namespace nzcl::engine
