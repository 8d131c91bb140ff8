// The listening port of a meeting and of the control plane. Anybody may connect to it, but only connections
// that prove the key are let in.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "runtime/bootstrap/addresses.h"
#include "runtime/bootstrap/secure_stream.h"

namespace nzcl::bootstrap {

/// How many connections that have not proved the key may exist at one time. At this number, a new
/// connection replaces the oldest. Waiting instead would allow strangers that keep silent to shut out all
/// members. A member proves the key within a round trip and some computing, so it is replaced only if this
/// many others connect within that time, and then it connects again. The number stays well below the usual
/// limit of 1024 descriptors for a process, because the rest of the process needs descriptors too.
inline constexpr std::size_t kUnprovedLimit = 256;

/// Accepts connections on the thread of its io_context. An error of accept() never ends the listening: when
/// the process or the system is out of descriptors or memory, the oldest connection that has not proved the
/// key is closed to make room for the new one.
class Listener {
 public:
  /// Takes over a connection that has proved the key. If it throws, the connection is refused and the
  /// exception's text is logged.
  using Greet = std::function<asio::awaitable<void>(std::shared_ptr<Stream>)>;
  using Owner = std::function<asio::any_io_executor()>;

  /// Listens on all of `addresses` that this host has, or on every interface if there are none. With port 0,
  /// which is for at most one address, the system chooses the port. `name` stands in the log's lines. Throws
  /// std::system_error when the port is not available on one of the addresses, or when the host has none of
  /// them.
  Listener(asio::io_context& io, const Addresses& addresses, int port, std::string name);
  /// Closes all connections that have not proved the key, or whose greeting is not over.
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  int port() const;
  /// Starts to accept connections; to be called once. `context`, and everything that `greet` and `owner`
  /// refer to, must live as long as the io_context runs. `owner` returns to which thread the next connection
  /// belongs; its handshake takes place there, but it is greeted on the thread of the io_context. Without
  /// `owner` they are the same.
  void start(asio::ssl::context& context, Greet greet, Owner owner = {});
  /// Accepts no more connections. Those that are in the middle of the handshake may finish it.
  void close();
  /// Closes the oldest connection that has not proved the key, to set a descriptor free. Returns false if
  /// there is none.
  bool make_room();
  /// Which connection was refused last, and why; "" if none was.
  const std::string& last_refusal() const;

 private:
  struct State;
  std::shared_ptr<State> state_;  // shared with the coroutines, which may outlive the listener
};

}  // namespace nzcl::bootstrap
