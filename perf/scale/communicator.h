// One rank's part of a communicator, in simulated time: a lane, and what becomes of requests.
#pragma once

#include <bitset>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "perf/scale/core.h"
#include "runtime/comm/request/request.h"
#include "runtime/comm/session/registrations.h"
#include "runtime/lane/lane.h"
#include "runtime/operation/operation.h"

namespace perf::scale {

/// The operation that a request comes to, as the library makes it for a communicator with that configuration.
/// Throws what the library throws for such a request.
std::shared_ptr<nzcl::engine::Operation> make_operation(const nzcl::engine::EngineConfig& config,
                                                        std::uint64_t epoch,
                                                        const nzcl::comm::Request& request,
                                                        const nzcl::comm::Registrations& registrations);

/// By wire::Priority: whether a lane has channels and an exchange for it. A real rank has all of them, and
/// without those that nothing is exchanged at it does the same in the same time, and thousands of ranks fit.
using Priorities = std::bitset<nzcl::wire::kPriorities>;

/// Does what a CommunicatorCore does of a request, without threads, meetings and failures: the record, the
/// choice of the algorithm, the layout and the operation are made by the same functions, and lanes are those
/// of the library.
class Communicator {
 public:
  using Operation = nzcl::engine::Operation;
  using Over = std::function<void(const std::shared_ptr<Operation>&)>;

  /// Operations are chosen and laid out as the configuration says. The lane has the exchanges of the
  /// priorities in `needed`, and no others.
  Communicator(Core& core, const nzcl::engine::EngineConfig& config, const Priorities& needed,
               const std::shared_ptr<nzcl::verbs::Device>& device,
               const nzcl::comm::Registrations& registrations);
  /// Connects the lanes of all members, who are numbered in this order.
  static void connect(std::span<Communicator* const> members);

  /// Starts an operation. `over` is called when it has finished, within the round that has finished it.
  /// Throws what make_operation() throws, and std::logic_error if the lane lacks the exchange for it.
  std::shared_ptr<Operation> start(const nzcl::comm::Request& request, Over over);
  /// Lets the lane have a round, after which operations are told that have finished meanwhile.
  void wake() { core_.wake(number_); }
  const nzcl::engine::EngineConfig& config() const { return config_; }
  const std::string& failure() const { return failure_; }
  Time clock() const { return core_.clock(); }  // of its core

 private:
  struct UnderWay {
    std::shared_ptr<Operation> operation;
    Over over;
  };
  void tell_finished();

  Core& core_;
  const std::size_t number_;  // of the lane, on the rank
  const nzcl::engine::EngineConfig config_;
  const Priorities needed_;
  const nzcl::comm::Registrations& registrations_;
  nzcl::engine::Lane lane_;
  std::uint64_t epoch_ = 0;
  std::vector<UnderWay> under_way_;
  std::string failure_;
};

}  // namespace perf::scale
