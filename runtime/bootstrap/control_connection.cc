#include "runtime/bootstrap/control_connection.h"

namespace nzcl::bootstrap {

asio::awaitable<void> write_loop(std::shared_ptr<ControlConnection> connection) {
  try {
    while (!connection->closed) {
      if (connection->outgoing.empty()) {
        if (connection->finishing) connection->end();
        asio::error_code ignored;
        co_await connection->wake.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
        continue;
      }
      FrameBytes frame = std::move(connection->outgoing.front());
      connection->outgoing.pop_front();
      co_await write_frame(*connection->stream, std::move(frame));
    }
  } catch (const std::exception&) {
    // The coroutine that reads finds the connection broken as well, and handles it.
  }
}

}  // namespace nzcl::bootstrap
