// A call on a stream that was captured into a graph.
#pragma once

#include <memory>
#include <mutex>

#include "runtime/comm/gpu/staged_operation.h"
#include "runtime/comm/request/requests.h"

namespace nzcl::comm {

class CommunicatorCore;

/// Begins an operation whenever a launch of the graph comes to the call. What the GPU does is in the graph:
/// for each operation the same kernels, in the same memory, with the same flags, which are lowered before.
///
/// A graph may be launched when its communicator has ended, and nobody says when it is destroyed. So a call
/// is kept until the process ends; a launch without a communicator goes on without a result.
class CapturedCall {
 public:
  /// Puts into the request's stream what belongs to the call. `prepared` has a StagedOperation, made for a
  /// graph. Throws Error{system}.
  static std::shared_ptr<CapturedCall> make(CommunicatorCore& core, Prepared prepared);
  CapturedCall(const CapturedCall&) = delete;
  CapturedCall& operator=(const CapturedCall&) = delete;

  /// Begins no operations any more. Waits for one that is just being begun.
  void detach();
  /// The request, from which one operation can be made.
  Prepared request() const;

 private:
  CapturedCall(CommunicatorCore& core, Prepared prepared) : core_(&core), prepared_(std::move(prepared)) {}
  /// What the GPU calls, on a thread of the driver's.
  static void begin(void* self) noexcept;
  StagedOperation& staged() const { return static_cast<StagedOperation&>(*prepared_.staged); }

  std::mutex mutex_;  // of the next two
  CommunicatorCore* core_;
  std::shared_ptr<engine::Operation> last_;
  const Prepared prepared_;
};

}  // namespace nzcl::comm
