// The threads among which the hub of a large meeting divides its connections.
#pragma once

#include <asio.hpp>

#include <cstddef>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

namespace nzcl::bootstrap {

/// How many connections are worth a thread, and the most threads that a hub has. They sleep unless something
/// arrives or is to be sent, so that a process with fewer cores loses nothing by them.
inline constexpr std::size_t kStreamsPerThread = 64;
inline constexpr std::size_t kMostStreamThreads = 16;

/// Threads ("nzcl-streams") that do for the connections of a hub what takes long: handshakes, encryption,
/// system calls and the reading of frames. Each connection belongs to one of them. What the frames mean is
/// decided on the thread of the hub's own io_context, which also owns this object.
class StreamThreads {
 public:
  /// With fewer members than kStreamsPerThread there are no threads, and all connections belong to the thread
  /// of `io`. There are fewer threads, or none, where the system allows no more threads or few descriptors.
  StreamThreads(asio::io_context& io, std::size_t members);
  /// Waits until all coroutines of the connections have ended. Their streams may live longer than that, but
  /// not than this object.
  ~StreamThreads();
  StreamThreads(const StreamThreads&) = delete;
  StreamThreads& operator=(const StreamThreads&) = delete;

  /// Where the next connection belongs: to each thread in turn.
  asio::any_io_executor next();
  /// Waits until all coroutines of the connections have ended, and ends the threads.
  void join();

 private:
  struct OwnThread {
    asio::io_context io{1};
    asio::executor_work_guard<asio::io_context::executor_type> work = asio::make_work_guard(io);
    std::jthread thread;
  };
  void start_one();

  asio::io_context& io_;
  std::vector<std::unique_ptr<OwnThread>> threads_;
  std::size_t next_ = 0;
};

/// To be awaited by a coroutine of `own`: does `work` on the thread that `executor` belongs to, and goes on
/// on the coroutine's own with its result. Whatever `work` refers to must live until then.
template <typename T>
asio::awaitable<T> run_on(const asio::any_io_executor& executor, const asio::any_io_executor& own,
                          asio::awaitable<T> work) {
  if (executor == own) return work;
  return asio::co_spawn(executor, std::move(work), asio::use_awaitable);
}

}  // namespace nzcl::bootstrap
