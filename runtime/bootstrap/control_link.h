// One connection of the control plane's star.
#pragma once

#include <deque>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "runtime/bootstrap/secure_stream.h"

namespace nzcl::bootstrap {

/// What is left to say at the end is said in this time or not at all.
inline constexpr std::chrono::seconds kFlushTime{1};

/// Lives on the control thread, kept alive by its own coroutines.
struct Link : std::enable_shared_from_this<Link> {
  explicit Link(std::shared_ptr<Stream> s)
      : stream(std::move(s)), wake(stream->get_executor()), limit(stream->get_executor()) {
    wake.expires_at(Clock::time_point::max());
  }
  const std::shared_ptr<Stream> stream;
  std::deque<std::string> outgoing;
  asio::steady_timer wake;   // cancelled when something of the below changes
  asio::steady_timer limit;  // of finishing
  bool finishing = false;    // close when all is sent
  bool closed = false;

  void send(const nlohmann::json& frame) {
    outgoing.push_back(frame.dump());
    wake.cancel();
  }
  void finish() {
    if (closed) return;
    finishing = true;
    wake.cancel();
    limit.expires_after(kFlushTime);
    limit.async_wait([self = shared_from_this()](asio::error_code error) {
      if (!error) self->close();
    });
  }
  void close() {
    closed = true;
    wake.cancel();
    limit.cancel();
    asio::error_code ignored;
    stream->lowest_layer().close(ignored);
  }
};

/// Sends what link->send() was given, until the link is closed.
asio::awaitable<void> write_loop(std::shared_ptr<Link> link);

}  // namespace nzcl::bootstrap
