// Tries whether the members of a host may write each other's memory.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "verbs/cma/handles.h"
#include "verbs/segment/mapping.h"
#include "verbs/trial.h"

namespace nzcl::verbs::cma {

/// Process ids mean the same only within one pid namespace, so others are refused before a process is looked
/// for.
///
/// A member offers shared memory with a random number and one cell for each peer. A peer takes the
/// descriptor, reads the number, which proves that this is the member's process and not another one with the
/// same id, writes its cell through the kernel, and reads there what it has written.
class CmaTrial final : public Trial {
 public:
  /// Throws Error{system}.
  explicit CmaTrial(const TrialOptions& options);
  std::string offer() const override;
  std::string try_peer(std::string_view offer) override;

 private:
  /// It travels as these bytes.
  struct Offer {
    std::uint64_t nonce = 0, address = 0;  // of the first byte of the memory
    std::uint64_t pid_namespace = 0;
    std::int32_t pid = 0, fd = -1;
  };
  std::string write_cell(const Process& peer, const Fd& memory, const Offer& offer) const;

  const TrialOptions options_;
  const std::uint64_t nonce_, pid_namespace_;
  Fd fd_;
  segment::Mapping memory_;
};

}  // namespace nzcl::verbs::cma
