#include "runtime/bootstrap/control_reach.h"

#include <memory>

#include "runtime/bootstrap/sockets.h"

namespace nzcl::bootstrap {
namespace {

/// Whether a connection to the endpoint comes about within kReachTime.
asio::awaitable<bool> accepts(Tcp::endpoint endpoint) {
  // Shared with the timer, whose call may come after the end of this coroutine.
  const auto socket =
      std::make_shared<Tcp::socket>(open_socket(co_await asio::this_coro::executor, endpoint.protocol()));
  asio::steady_timer limit(socket->get_executor(), kReachTime);
  limit.async_wait([socket](asio::error_code error) {
    asio::error_code ignored;
    if (!error) socket->close(ignored);
  });
  asio::error_code error;
  co_await socket->async_connect(endpoint, asio::redirect_error(asio::use_awaitable, error));
  // Within a host, silence means only that strangers have filled the queue of connections to be accepted.
  if (error) co_return error == asio::error::operation_aborted&& endpoint.address().is_loopback();
  // A socket may have got the very port that it connects to, where nobody listens any more; TCP then connects
  // it with itself.
  const Tcp::endpoint own = socket->local_endpoint(error), other = socket->remote_endpoint(error);
  co_return !error && own != other;
}

}  // namespace

asio::awaitable<bool> is_reachable(std::vector<std::string> hosts, int port, std::function<bool()> over) {
  for (const std::string& host : hosts) {
    if (over()) co_return true;
    const Tcp::endpoint endpoint(asio::ip::make_address(host), static_cast<unsigned short>(port));
    if (co_await accepts(endpoint)) co_return true;
  }
  co_return false;
}

}  // namespace nzcl::bootstrap
