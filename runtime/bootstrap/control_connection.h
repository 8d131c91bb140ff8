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

/// A connection with a queue of frames to send. Its calls come from the control thread, and are carried out
/// in their order on the thread that the stream belongs to, which may be the same. The coroutines that read
/// and write hold shared pointers to it, so it lives until both have ended.
class ControlConnection : public std::enable_shared_from_this<ControlConnection> {
 public:
  explicit ControlConnection(std::shared_ptr<Stream> stream);
  /// On the thread that it belongs to. To be read by one coroutine only.
  Stream& stream() { return *stream_; }
  asio::any_io_executor executor() { return stream_->get_executor(); }

  /// Puts the frame into the queue.
  void send(const nlohmann::json& frame) { send_bytes(json_text(frame)); }
  void send_bytes(std::string frame) { send_frame(FrameBytes::of(std::move(frame))); }
  void send_frame(FrameBytes frame);
  /// Closes the connection when the queue has been sent and the other side has closed it too, or after
  /// kFlushTime. A connection that is closed while data is unread is reset, and then the other side may never
  /// read what was sent last. Its end is read by whoever reads from the connection.
  void finish();
  /// Closes the connection at once. Reads and writes in progress end with an error.
  void close();
  /// Sends the frames of the queue in order, until the connection is closed. Runs on the stream's thread.
  static asio::awaitable<void> write_loop(std::shared_ptr<ControlConnection> self);

 private:
  void close_here();
  /// Tells the other side that nothing follows.
  void end();

  const std::shared_ptr<Stream> stream_;
  std::deque<FrameBytes> outgoing_;
  asio::steady_timer wake_;   // write_loop() sleeps on it; cancelled when there is something for it to do
  asio::steady_timer limit_;  // closes the connection kFlushTime after finish()
  bool finishing_ = false;    // nothing follows what is in the queue
  bool ended_ = false;        // the other side has been told that nothing follows
  bool closed_ = false;
};

}  // namespace nzcl::bootstrap
