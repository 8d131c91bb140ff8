// Records what every thread does and when, for NZCL_TRACE. Usually this is off, and then a span costs one
// load and one branch.
//
// Each thread records into a buffer of its own, which is allocated for its first span and never grows. Spans
// that do not fit are only counted. write() may run while other threads record.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

namespace nzcl::trace {

/// The kinds of spans.
enum class What : std::uint8_t {
  operation,  // from the call to the last byte of its result
  scan,       // looking for non-zero blocks of a slice
  push,       // composing a message of bitmap and blocks for an aggregator
  post,       // handing writes to the transport, which may copy the data at once
  reduce,     // summing a piece of a slice
  zero,       // clearing blocks that no rank holds
  result,     // writing sums into the output
};

inline std::atomic<bool> on{false};

/// Nanoseconds on the host's monotonic clock.
std::int64_t clock() noexcept;
/// The same, but 0 while tracing is off.
inline std::int64_t now() noexcept { return on.load(std::memory_order_relaxed) ? clock() : 0; }
/// Records a span from `begin`, a result of now(), to this moment. Does nothing if `begin` is 0.
void record(What what, std::int64_t begin, std::uint64_t epoch, std::uint64_t slice) noexcept;

/// Records a span from its construction to its destruction.
class Span {
 public:
  Span(What what, std::uint64_t epoch, std::uint64_t slice)
      : epoch_(epoch), slice_(slice), begin_(now()), what_(what) {}
  ~Span() {
    if (begin_ != 0) record(what_, begin_, epoch_, slice_);
  }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  const std::uint64_t epoch_, slice_;
  const std::int64_t begin_;
  const What what_;
};

/// Turns tracing on for this process. The file of the first call stays in use. `member` names this process in
/// it. With `first_of_host`, which one process of each host passes, the file is emptied, so no process may
/// call write() before all have called start(). Throws Error{system}.
void start(const std::string& path, std::string_view member, bool first_of_host);
/// Appends what has been recorded since the last call to the file. Does nothing while tracing is off. Throws
/// Error{system}.
void write();

}  // namespace nzcl::trace
