#include "runtime/bootstrap/control_link.h"

namespace nzcl::bootstrap {

asio::awaitable<void> write_loop(std::shared_ptr<Link> link) {
  try {
    while (!link->closed) {
      if (link->outgoing.empty()) {
        if (link->finishing) link->close();
        if (link->closed) break;
        asio::error_code ignored;
        co_await link->wake.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
        continue;
      }
      std::string frame = std::move(link->outgoing.front());
      link->outgoing.pop_front();
      co_await write_frame(*link->stream, std::move(frame));
    }
  } catch (const std::exception&) {
    // The reader sees the broken connection too, and says what it means.
  }
}

}  // namespace nzcl::bootstrap
