// Sockets that programs do not inherit. Asio makes its sockets without the flag close-on-exec, so a program
// that this process starts would hold the members' connections open, and hide the death of this process from
// them. The flag is set by the call that makes the descriptor, because another thread may start a program at
// any moment.
#pragma once

#include <asio.hpp>

#include <functional>

namespace nzcl::bootstrap {

using Tcp = asio::ip::tcp;

/// An open socket that is not connected yet, for IPv4 or IPv6. Throws std::system_error.
Tcp::socket open_socket(const asio::any_io_executor& executor, const Tcp& family);

/// A socket that listens on `endpoint`; on the address "::" it also takes connections over IPv4. Throws
/// std::system_error when the address or the port is not available.
Tcp::acceptor open_acceptor(asio::io_context& io, const Tcp::endpoint& endpoint);

/// Waits for the next connection, whose socket belongs to the executor that `owner` returns. Returns a closed
/// socket and sets `error` if there is none.
asio::awaitable<Tcp::socket> accept(Tcp::acceptor& acceptor,
                                    const std::function<asio::any_io_executor()>& owner,
                                    asio::error_code& error);

}  // namespace nzcl::bootstrap
