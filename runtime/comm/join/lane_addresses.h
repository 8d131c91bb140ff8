// What members tell each other about their lanes before these are connected.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace nzcl::comm {

/// The addresses of one member's lanes. A lane may have another address for each member, but its addresses
/// mostly begin alike, and what is told to several members travels once. Of further lanes it is told how they
/// differ from the lane before.
class LaneAddresses {
 public:
  /// Adds a lane by its addresses for all members.
  void add(const std::vector<std::string>& addresses);
  /// What the member with this index is told. What all are told comes first.
  std::string told(std::size_t member) const;
  /// Returns the address of each of `lanes` lanes from what another member has told this one. Throws
  /// Error{mismatch} that names the sender `who` if there are not as many.
  static std::vector<std::string> decode(const std::string& text, std::size_t lanes, const std::string& who);

 private:
  struct Lane {
    std::string common;
    std::vector<std::string> ends;  // by member
  };
  std::vector<Lane> lanes_;
};

}  // namespace nzcl::comm
