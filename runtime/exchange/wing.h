// The seam to an exchange that a build of nzcl may leave out: all that the layers above know of it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "nzcl/options.h"
#include "runtime/exchange/exchange.h"
#include "runtime/plan/membership.h"

namespace nzcl::engine {

/// Exchanges all operations of a communicator, in the place of the ways from which choose_algorithm()
/// chooses. A member has one object of it, which never changes, and which the communicators that are split
/// off share. Thread-safe.
class Wing {
 public:
  virtual ~Wing() = default;

  /// Throws Error{invalid_argument} if such members cannot exchange by it. All members call it alike.
  virtual void check(const Members& members) const = 0;
  /// Returns what makes the exchanges of this member's lanes, as EngineConfig::make_exchange.
  virtual std::function<std::unique_ptr<Exchange>(LaneContext&)> plan(const Options& options,
                                                                      const Membership& membership) const = 0;

  // --- What it cannot do, as the text of an Error{unsupported}. All ranks come to the same.
  /// Returns nothing if it can exchange such an operation.
  virtual std::optional<std::string> why_not(const wire::OperationRecord& record) const = 0;
  /// Why no input may be a list of indices and values.
  virtual const char* why_no_sparse_input() const = 0;
  /// Why results cannot be coded, as a part of a sentence.
  virtual const char* why_no_coded_results() const = 0;
};

}  // namespace nzcl::engine
