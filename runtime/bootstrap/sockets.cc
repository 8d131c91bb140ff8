#include "runtime/bootstrap/sockets.h"

#include <sys/socket.h>

#include <cerrno>

namespace nzcl::bootstrap {
namespace {

asio::error_code last_error() { return {errno, asio::error::get_system_category()}; }

int new_socket(const Tcp& family, int flags) {
  const int fd = ::socket(family.family(), SOCK_STREAM | SOCK_CLOEXEC | flags, IPPROTO_TCP);
  if (fd < 0) throw asio::system_error(last_error());
  return fd;
}

/// Whether no connection is there after all: another thread has taken it, or the other side has closed it.
bool has_vanished(int error) { return error == EAGAIN || error == EINTR || error == ECONNABORTED; }

}  // namespace

Tcp::socket open_socket(const asio::any_io_executor& executor, const Tcp& family) {
  return {executor, family, new_socket(family, 0)};
}

Tcp::acceptor open_acceptor(asio::io_context& io, const Tcp::endpoint& endpoint) {
  const Tcp family = endpoint.protocol();
  Tcp::acceptor acceptor(io, family, new_socket(family, SOCK_NONBLOCK));
  acceptor.set_option(asio::socket_base::reuse_address(true));
  if (family == Tcp::v6()) acceptor.set_option(asio::ip::v6_only(!endpoint.address().is_unspecified()));
  acceptor.bind(endpoint);
  acceptor.listen();
  return acceptor;
}

asio::awaitable<Tcp::socket> accept(Tcp::acceptor& acceptor,
                                    const std::function<asio::any_io_executor()>& owner,
                                    asio::error_code& error) {
  const Tcp family = acceptor.local_endpoint().protocol();
  while (true) {
    co_await acceptor.async_wait(Tcp::acceptor::wait_read, asio::redirect_error(asio::use_awaitable, error));
    if (error || !acceptor.is_open()) break;
    const int fd = ::accept4(acceptor.native_handle(), nullptr, nullptr, SOCK_CLOEXEC);
    if (fd >= 0) co_return Tcp::socket(owner(), family, fd);
    if (has_vanished(errno)) continue;
    error = last_error();
    break;
  }
  co_return Tcp::socket(acceptor.get_executor());
}

}  // namespace nzcl::bootstrap
