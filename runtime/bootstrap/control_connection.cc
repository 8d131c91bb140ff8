#include "runtime/bootstrap/control_connection.h"

namespace nzcl::bootstrap {

ControlConnection::ControlConnection(std::shared_ptr<Stream> stream)
    : stream_(std::move(stream)), wake_(stream_->get_executor()), limit_(stream_->get_executor()) {
  wake_.expires_at(Clock::time_point::max());
}

void ControlConnection::send_frame(FrameBytes frame) {
  asio::post(executor(), [self = shared_from_this(), frame = std::move(frame)]() mutable {
    self->outgoing_.push_back(std::move(frame));
    self->wake_.cancel();
  });
}

void ControlConnection::finish() {
  asio::post(executor(), [self = shared_from_this()] {
    if (self->closed_) return;
    self->finishing_ = true;
    self->wake_.cancel();
    self->limit_.expires_after(kFlushTime);
    self->limit_.async_wait([self](asio::error_code error) {
      if (!error) self->close_here();
    });
  });
}

void ControlConnection::close() {
  asio::post(executor(), [self = shared_from_this()] { self->close_here(); });
}

void ControlConnection::close_here() {
  closed_ = true;
  wake_.cancel();
  limit_.cancel();
  asio::error_code ignored;
  stream_->lowest_layer().close(ignored);
}

void ControlConnection::end() {
  if (std::exchange(ended_, true)) return;
  asio::error_code ignored;
  stream_->lowest_layer().shutdown(Tcp::socket::shutdown_send, ignored);
}

asio::awaitable<void> ControlConnection::write_loop(std::shared_ptr<ControlConnection> self) {
  try {
    while (!self->closed_) {
      if (self->outgoing_.empty()) {
        if (self->finishing_) self->end();
        asio::error_code ignored;
        co_await self->wake_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
        continue;
      }
      FrameBytes frame = std::move(self->outgoing_.front());
      self->outgoing_.pop_front();
      co_await write_frame(*self->stream_, std::move(frame));
    }
  } catch (const std::exception&) {
    // The coroutine that reads finds the connection broken as well, and handles it.
  }
}

}  // namespace nzcl::bootstrap
