// What every thread did and when, for NZCL_TRACE. Off (the usual case), a span costs one load and a branch.
//
// Each thread records into a buffer of its own, which is allocated at its first span and never grows; what
// does not fit is counted. write() may run beside threads that record.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

namespace nzcl::trace {

enum class What : std::uint8_t {
  operation,  // from the call to the last byte of its result
  scan,       // looking for non-zero blocks of a slice
  push,       // composing a message of bitmap and blocks for an aggregator
  post,       // handing writes to the transport, which may copy them there and then
  reduce,     // summing a piece of a slice
  zero,       // clearing what no rank holds
  result,     // putting sums into their places
};

inline std::atomic<bool> on{false};

/// Nanoseconds on the host's monotonic clock; 0 while tracing is off.
std::int64_t clock() noexcept;
inline std::int64_t now() noexcept { return on.load(std::memory_order_relaxed) ? clock() : 0; }
/// From `begin` (a result of now(); 0: nothing happens) until now.
void record(What what, std::int64_t begin, std::uint64_t epoch, std::uint64_t slice) noexcept;

/// A span from here to the end of the scope.
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

/// Turns tracing on for this process. The file is that of the first call; `first_of_host` empties it, so
/// that the others may only write() once all have started. `member` names this process in it. Throws
/// Error{system}.
void start(const std::string& path, std::string_view member, bool first_of_host);
/// Appends what was recorded since the last call. Nothing while tracing is off. Throws Error{system}.
void write();

}  // namespace nzcl::trace
