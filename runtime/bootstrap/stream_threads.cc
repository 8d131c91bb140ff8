#include "runtime/bootstrap/stream_threads.h"

#include <pthread.h>
#include <sys/resource.h>

#include <algorithm>

#include "runtime/base/log.h"
#include "runtime/base/start_thread.h"

namespace nzcl::bootstrap {
namespace {

// What a thread's io_context takes: descriptors of epoll, of a timer, and of an event that wakes it.
constexpr std::size_t kDescriptorsPerThread = 3;
// What the process may need beside a connection to each member. Where descriptors are that few, the
// connections need no threads of their own.
constexpr std::size_t kOtherDescriptors = 64;

/// For how many threads there are descriptors.
std::size_t threads_allowed(std::size_t members) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  const std::size_t others = members + kOtherDescriptors;
  return limit.rlim_cur > others ? (limit.rlim_cur - others) / kDescriptorsPerThread : 0;
}

}  // namespace

StreamThreads::StreamThreads(asio::io_context& io, std::size_t members) : io_(io) {
  const std::size_t count =
      std::min({members / kStreamsPerThread, kMostStreamThreads, threads_allowed(members)});
  try {
    while (threads_.size() < count) start_one();
  } catch (const std::exception& e) {
    log().info("rank 0: the connections of {} members have {} threads of {}: {}", members, threads_.size(),
               count, e.what());
  }
}

void StreamThreads::start_one() {
  auto own = std::make_unique<OwnThread>();
  own->thread = start_thread("nzcl-streams", [&own] {
    return std::jthread([&io = own->io] {
      ::pthread_setname_np(::pthread_self(), "nzcl-streams");
      io.run();
    });
  });
  threads_.push_back(std::move(own));
}

StreamThreads::~StreamThreads() { join(); }

asio::any_io_executor StreamThreads::next() {
  if (threads_.empty()) return io_.get_executor();
  return threads_[next_++ % threads_.size()]->io.get_executor();
}

void StreamThreads::join() {
  for (const auto& own : threads_) own->work.reset();
  for (const auto& own : threads_) {
    if (own->thread.joinable()) own->thread.join();
  }
}

}  // namespace nzcl::bootstrap
