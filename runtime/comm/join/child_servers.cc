#include "runtime/comm/join/child_servers.h"

#include <pthread.h>

#include <utility>

#include "runtime/base/log.h"
#include "runtime/base/start_thread.h"

namespace nzcl::comm {

void ChildServers::start(std::function<void()> serve) {
  servers_.remove_if([](const Server& server) { return server.over.load(); });
  Server& server = servers_.emplace_back();
  server.thread = start_thread("nzcl-serve", [&] {
    return std::jthread([this, &server, serve = std::move(serve)] {
      ::pthread_setname_np(::pthread_self(), "nzcl-serve");
      try {
        serve();
      } catch (const std::exception&) {
        note(std::current_exception());
      }
      server.over = true;
    });
  });
}

void ChildServers::note(std::exception_ptr error) {
  {
    const std::scoped_lock lock(mutex_);
    if (!first_) {
      first_ = std::move(error);
      return;
    }
  }
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    log().error("{}: {}", name_, e.what());
  }
}

void ChildServers::wait() {
  servers_.clear();
  const std::scoped_lock lock(mutex_);
  if (first_) std::rethrow_exception(first_);
}

}  // namespace nzcl::comm
