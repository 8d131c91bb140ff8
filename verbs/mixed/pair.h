// The name of a pair of transports: "cma,tcp" is cma within a host and tcp between hosts.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace nzcl::verbs {

struct TransportPair {
  std::string within, between;

  std::string text() const { return within + ',' + between; }
  /// The two names, split at the first comma. Returns nothing for the name of a single transport.
  static std::optional<TransportPair> of(std::string_view name) {
    const auto comma = name.find(',');
    if (comma == std::string_view::npos) return std::nullopt;
    return TransportPair{std::string(name.substr(0, comma)), std::string(name.substr(comma + 1))};
  }
};

/// Returns true for transports that share memory, so that they work within a host only.
inline bool is_within_host(std::string_view transport) {
  return transport == "cma" || transport == "shm" || transport == "libfabric-shm";
}

/// The transport that reaches other hosts, of a pair or of a single name.
inline std::string between_hosts(const std::string& transport) {
  const auto pair = TransportPair::of(transport);
  return pair ? pair->between : transport;
}

}  // namespace nzcl::verbs
