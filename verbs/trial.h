// Finds out by trying whether processes of one host can share memory over a transport. What they say of
// themselves does not tell: containers may have the same namespaces in part, processes may belong to several
// users, and what a security module forbids is seen only when it forbids it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "verbs/transport.h"

namespace nzcl::verbs {

struct TrialOptions {
  PeerId self = 0;            // this member's index among those who try
  std::size_t peers = 1;      // their number, itself included
  std::size_t endpoints = 1;  // how many endpoints this member will open
};

/// One member's part of a trial. All members begin, tell each other what they offer, try each other's offers,
/// and only then destroy the trial. Not thread-safe.
class Trial {
 public:
  virtual ~Trial() = default;
  /// What a peer needs to try this member. It travels as these bytes.
  virtual std::string offer() const = 0;
  /// Tries the member that made `offer`. Returns why this member cannot use its memory as the transport does,
  /// or an empty string. An offer that makes no sense is a reason too.
  virtual std::string try_peer(std::string_view offer) = 0;
};

}  // namespace nzcl::verbs
