#include "runtime/bootstrap/control_reach.h"

#include <memory>

#include "runtime/bootstrap/sockets.h"

namespace nzcl::bootstrap {
namespace {

asio::awaitable<Reach> call(Tcp::endpoint endpoint) {
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
  if (error == asio::error::operation_aborted) {
    // Within a host, silence means only that strangers have filled the queue of connections to be accepted.
    co_return endpoint.address().is_loopback() ? Reach::accepts : Reach::silent;
  }
  if (error) co_return error == asio::error::connection_refused ? Reach::refuses : Reach::silent;
  // A socket may have got the very port that it connects to, where nobody listens any more; TCP then connects
  // it with itself.
  const Tcp::endpoint own = socket->local_endpoint(error), other = socket->remote_endpoint(error);
  co_return !error && own != other ? Reach::accepts : Reach::refuses;
}

}  // namespace

asio::awaitable<Reach> reach(std::vector<std::string> hosts, int port, std::function<bool()> over) {
  Reach reached = Reach::silent;
  for (const std::string& host : hosts) {
    if (over()) co_return Reach::accepts;
    const Tcp::endpoint endpoint(asio::ip::make_address(host), static_cast<unsigned short>(port));
    const Reach here = co_await call(endpoint);
    if (here == Reach::accepts) co_return here;
    if (here == Reach::refuses) reached = here;
  }
  co_return reached;
}

}  // namespace nzcl::bootstrap
