// Tries whether the members of a host can meet in /dev/shm.
#pragma once

#include <string>
#include <string_view>

#include "verbs/shm/listener.h"
#include "verbs/trial.h"

namespace nzcl::verbs::shm {

/// A member offers the name of a socket where it listens. A peer that can connect to it sees the same folder,
/// and the kernel says whether it belongs to the same user. The name is random, so nobody else listens there.
class ShmTrial final : public Trial {
 public:
  /// Throws Error{unavailable}.
  explicit ShmTrial(const TrialOptions& options);
  std::string offer() const override;
  std::string try_peer(std::string_view offer) override;

 private:
  Listener listener_;
};

}  // namespace nzcl::verbs::shm
