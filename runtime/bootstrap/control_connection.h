// One connection between the hub of the control plane and a member.
#pragma once

#include <deque>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "runtime/base/json_text.h"
#include "runtime/bootstrap/frame_bytes.h"
#include "runtime/bootstrap/meeting.h"
#include "runtime/bootstrap/secure_stream.h"

namespace nzcl::bootstrap {

/// How long a connection that finishes may take to send what is still in its queue.
inline constexpr std::chrono::seconds kFlushTime{1};

/// A connection with a queue of frames to send. Used on the control thread only. The coroutines that read and
/// write hold shared pointers to it, so it lives until both have ended.
struct ControlConnection : std::enable_shared_from_this<ControlConnection> {
  explicit ControlConnection(std::shared_ptr<Stream> s)
      : stream(std::move(s)), wake(stream->get_executor()), limit(stream->get_executor()) {
    wake.expires_at(Clock::time_point::max());
  }
  const std::shared_ptr<Stream> stream;
  std::deque<FrameBytes> outgoing;
  asio::steady_timer wake;   // write_loop() sleeps on it; cancelled when there is something for it to do
  asio::steady_timer limit;  // closes the connection kFlushTime after finish()
  bool finishing = false;    // nothing follows what is in the queue
  bool ended = false;        // the other side has been told that nothing follows
  bool closed = false;

  /// Puts the frame into the queue.
  void send(const nlohmann::json& frame) { send_bytes(json_text(frame)); }
  void send_bytes(std::string frame) { send_frame(FrameBytes::of(std::move(frame))); }
  void send_frame(FrameBytes frame) {
    outgoing.push_back(std::move(frame));
    wake.cancel();
  }
  /// Closes the connection when the queue has been sent and the other side has closed it too, or after
  /// kFlushTime. A connection that is closed while data is unread is reset, and then the other side may never
  /// read what was sent last. Its end is read by whoever reads from the connection.
  void finish() {
    if (closed) return;
    finishing = true;
    wake.cancel();
    limit.expires_after(kFlushTime);
    limit.async_wait([self = shared_from_this()](asio::error_code error) {
      if (!error) self->close();
    });
  }
  /// Tells the other side that nothing follows.
  void end() {
    if (std::exchange(ended, true)) return;
    asio::error_code ignored;
    stream->lowest_layer().shutdown(Tcp::socket::shutdown_send, ignored);
  }
  /// Closes the connection at once. Reads and writes in progress end with an error.
  void close() {
    closed = true;
    wake.cancel();
    limit.cancel();
    asio::error_code ignored;
    stream->lowest_layer().close(ignored);
  }
};

/// Sends the frames of the queue in order, until the connection is closed.
asio::awaitable<void> write_loop(std::shared_ptr<ControlConnection> connection);

}  // namespace nzcl::bootstrap
