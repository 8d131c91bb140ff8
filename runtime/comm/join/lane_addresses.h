// What members tell each other about their lanes before these are connected.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace nzcl::comm {

/// The addresses of one member's lanes. Each lane has one for each member, its own included.
class LaneAddresses {
 public:
  explicit LaneAddresses(std::size_t members) : members_(members) {}
  /// Throws Error{mismatch} that names the sender `who` if `text` does not have an address of each of `lanes`
  /// lanes for each member.
  static LaneAddresses decode(const std::string& text, std::size_t lanes, std::size_t members,
                              const std::string& who);
  std::string encode() const;

  /// Addresses are added lane by lane, and for each lane member by member.
  void add(std::string address) { addresses_.push_back(std::move(address)); }
  const std::string& of(std::size_t lane, std::size_t member) const {
    return addresses_[lane * members_ + member];
  }

 private:
  std::size_t members_;
  std::vector<std::string> addresses_;
};

}  // namespace nzcl::comm
