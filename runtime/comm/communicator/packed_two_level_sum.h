// A sum in two levels of streams, with a packed result.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "runtime/comm/communicator/levels.h"
#include "runtime/comm/communicator/two_level_sum.h"

namespace nzcl::comm {

/// Its steps are allreduces of streams. Each column takes the blocks of a range of the tensor.
class PackedTwoLevelSum final : public TwoLevelSum {
 public:
  PackedTwoLevelSum(Levels& levels, TwoLevelRequest request);
  void announce() override;
  void begin() override;
  void refuse(const Failure& failure) override { failure_ = failure; }

 protected:
  void take_list(const HostList& list) override;

 private:
  using Operation = engine::Operation;

  /// A request of a step, whose result goes to `result`, or to the caller if that is nullptr.
  SparseAllreduceRequest step_request(LevelBuffer* result) const;
  void sum_host();
  void sum_hosts();
  void give_to_host();
  void done(const std::shared_ptr<Operation>& last);
  /// Completes a step whose result is in `buffer`, and returns how many blocks that has. If it fails, it says
  /// so in `failure_`.
  std::uint64_t complete(Operation& step, LevelBuffer& buffer);

  Levels& levels_;
  TwoLevelRequest request_;
  std::uint64_t up_ = 0, across_ = 0, down_ = 0;      // numbers of its steps
  std::unique_ptr<LevelBuffer> of_host_, of_column_;  // what the steps have left
  std::uint64_t host_blocks_ = 0, column_blocks_ = 0;
  std::optional<Failure> failure_;
};

}  // namespace nzcl::comm
