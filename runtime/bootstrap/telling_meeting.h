// A meeting whose members tell each other why one of them gives up.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/failure.h"
#include "runtime/bootstrap/bootstrap.h"

namespace nzcl::bootstrap {

/// Passes everything on to another meeting. A member that cannot go on, because it may not open a device or
/// start a thread, takes part in the next round all the same, and says why instead of what the others wait
/// for. So all of them end at once, with the reason, instead of waiting for a member that has left.
class TellingMeeting final : public Bootstrap {
 public:
  /// `meeting` must outlive it.
  explicit TellingMeeting(Bootstrap& meeting) : meeting_(meeting) {}

  int rank() const override { return meeting_.rank(); }
  int size() const override { return meeting_.size(); }
  std::string local_address() const override { return meeting_.local_address(); }
  /// Throws the Error of the first member that has given up.
  std::vector<std::string> allgather(std::string_view mine, Deadline deadline) override;
  /// To be called instead of the next allgather(). Does nothing if the meeting itself has failed, or if this
  /// member has learnt from it that another one gives up. Does not throw.
  void give_up(const Failure& failure, Deadline deadline) noexcept;

 private:
  Bootstrap& meeting_;
  bool over_ = false;
};

}  // namespace nzcl::bootstrap
