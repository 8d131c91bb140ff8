// Tries whether the members of a host can reach each other's files in /dev/shm.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "verbs/ofi/shm_room.h"
#include "verbs/trial.h"

namespace nzcl::verbs::ofi {

/// A member offers the name of a file in /dev/shm and the number in it. A peer opens that file for writing,
/// as libfabric will open the files of the endpoints, and reads the number. Both must also be in one pid
/// namespace, because libfabric takes the process id from an endpoint's file and writes the memory of
/// whatever process has it.
class ShmTrial final : public Trial {
 public:
  explicit ShmTrial(std::shared_ptr<const ShmRoom> room);
  std::string offer() const override;
  std::string try_peer(std::string_view offer) override;

 private:
  const std::shared_ptr<const ShmRoom> room_;
};

}  // namespace nzcl::verbs::ofi
