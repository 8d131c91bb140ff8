#include "runtime/bootstrap/listener.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <deque>
#include <future>
#include <vector>

#include "nzcl/error.h"
#include "runtime/bootstrap/refusals.h"
#include "runtime/bootstrap/sockets.h"
#include "runtime/bootstrap/stream_threads.h"

namespace nzcl::bootstrap {
namespace {

// How long a connection may take to prove the key.
constexpr std::chrono::seconds kStrangersTime{10};
// The pause before accept() is tried again after an error that closing a connection does not remedy.
constexpr std::chrono::milliseconds kErrorPause{20};

/// Whether accept() failed for want of descriptors or memory, which closing another connection sets free.
bool is_shortage(const asio::error_code& error) {
  constexpr std::array kShortages{EMFILE, ENFILE, ENOBUFS, ENOMEM};
  return error.category() == asio::error::get_system_category() &&
         std::find(kShortages.begin(), kShortages.end(), error.value()) != kShortages.end();
}

/// Whether this host does not have the address, or not this kind of addresses.
bool is_absent(const asio::error_code& error) {
  return error == asio::error::address_family_not_supported ||
         error == asio::error_code(EADDRNOTAVAIL, asio::error::get_system_category());
}

using Acceptors = std::deque<Tcp::acceptor>;

/// Adds a socket that listens on the address. Returns why not if this host does not have the address.
asio::error_code add(Acceptors& acceptors, asio::io_context& io, const asio::ip::address& address, int port) {
  try {
    acceptors.push_back(open_acceptor(io, Tcp::endpoint(address, static_cast<unsigned short>(port))));
  } catch (const std::system_error& e) {
    if (!is_absent(e.code())) throw;
    return e.code();
  }
  return {};
}

Acceptors open_acceptors(asio::io_context& io, const Addresses& addresses, int port) {
  Acceptors acceptors;
  asio::error_code absent;
  for (const auto& address : addresses) {
    if (const auto error = add(acceptors, io, address, port)) absent = error;
  }
  if (addresses.empty()) absent = add(acceptors, io, asio::ip::address_v6::any(), port);
  if (addresses.empty() && absent) absent = add(acceptors, io, asio::ip::address_v4::any(), port);
  if (acceptors.empty()) throw asio::system_error(absent);
  return acceptors;
}

/// Whether the other side has only looked if somebody listens (control_reach.h), and closed the connection.
bool was_only_a_look(const std::exception& e) {
  const auto* const error = dynamic_cast<const std::system_error*>(&e);
  return error != nullptr &&
         (error->code() == asio::error::eof || error->code() == asio::error::connection_reset ||
          error->code() == asio::ssl::error::stream_truncated);
}

void close_here(Stream& stream) {
  asio::error_code ignored;
  stream.lowest_layer().close(ignored);
}

/// A connection that has not proved the key. Both are used on the thread that the socket belongs to.
struct Caller {
  explicit Caller(Tcp::socket accepted) : executor(accepted.get_executor()), socket(std::move(accepted)) {}
  const asio::any_io_executor executor;
  Tcp::socket socket;              // until there is a stream
  std::shared_ptr<Stream> stream;  // nullptr: the handshake has not begun

  void close() {
    asio::error_code ignored;
    if (stream) return close_here(*stream);
    socket.close(ignored);
  }
};

/// Runs on the caller's thread, because a stream's memory is large enough to take some time.
asio::awaitable<std::shared_ptr<Stream>> shake_hands_with(std::shared_ptr<Caller> caller,
                                                          asio::ssl::context& context) {
  caller->stream = std::make_shared<Stream>(std::move(caller->socket), context);
  co_await accept_secure(caller->stream, kStrangersTime);
  co_return caller->stream;
}

/// Runs `close` on the thread of `executor`, which waits for nobody. When it returns, the descriptor is free.
void close_on(const asio::any_io_executor& executor, const asio::any_io_executor& own,
              const std::function<void()>& close) {
  if (executor == own) return close();
  std::promise<void> closed;
  asio::post(executor, [&] {
    close();
    closed.set_value();
  });
  closed.get_future().wait();
}

}  // namespace

struct Listener::State {
  State(asio::io_context& io, const Addresses& addresses, int port, std::string name)
      : acceptors(open_acceptors(io, addresses, port)), refusals(std::move(name)) {}

  asio::any_io_executor own_executor() { return acceptors.front().get_executor(); }
  /// Closes the oldest connection that has not proved the key. Returns false if there is none.
  bool drop_oldest() {
    if (unproved.empty()) return false;
    Caller& oldest = *unproved.front();
    close_on(oldest.executor, own_executor(), [&] { oldest.close(); });
    unproved.pop_front();
    return true;
  }
  void close_greeted() {
    for (const auto& stream : greeted)
      close_on(stream->get_executor(), own_executor(), [&] { close_here(*stream); });
  }

  Acceptors acceptors;  // of all addresses
  asio::ssl::context* context = nullptr;
  Greet greet;
  Owner owner;
  std::deque<std::shared_ptr<Caller>> unproved;  // oldest first
  std::vector<std::shared_ptr<Stream>>
      greeted;  // connections that have proved the key, while they are greeted
  Refusals refusals;

  static asio::awaitable<void> accept_loop(std::shared_ptr<State> self, Tcp::acceptor& acceptor);
  static asio::awaitable<void> admit(std::shared_ptr<State> self, std::shared_ptr<Caller> caller);
  static asio::awaitable<std::shared_ptr<Stream>> prove(std::shared_ptr<State> self,
                                                        std::shared_ptr<Caller> caller);
};

/// `acceptor` is one of the state's own.
asio::awaitable<void> Listener::State::accept_loop(std::shared_ptr<State> self, Tcp::acceptor& acceptor) {
  asio::steady_timer pause(acceptor.get_executor());
  while (acceptor.is_open()) {
    asio::error_code error;
    Tcp::socket socket = co_await accept(acceptor, self->owner, error);
    if (!acceptor.is_open()) break;
    if (!error) {
      if (self->unproved.size() == kUnprovedLimit) self->drop_oldest();
      auto caller = std::make_shared<Caller>(std::move(socket));
      self->unproved.push_back(caller);
      asio::co_spawn(pause.get_executor(), admit(self, std::move(caller)), asio::detached);
      continue;
    }
    self->refusals.note("an unknown address", error.message());
    if (is_shortage(error) && self->drop_oldest()) continue;
    pause.expires_after(kErrorPause);
    co_await pause.async_wait(asio::use_awaitable);
  }
}

asio::awaitable<void> Listener::State::admit(std::shared_ptr<State> self, std::shared_ptr<Caller> caller) {
  const std::string from = peer_text(caller->socket);
  std::shared_ptr<Stream> stream;
  try {
    stream = co_await prove(self, std::move(caller));
    self->greeted.push_back(stream);
    co_await self->greet(stream);
  } catch (const std::exception& e) {
    if (!was_only_a_look(e)) self->refusals.note(from, e.what());
  }
  std::erase(self->greeted, stream);
}

asio::awaitable<std::shared_ptr<Stream>> Listener::State::prove(std::shared_ptr<State> self,
                                                                std::shared_ptr<Caller> caller) {
  std::shared_ptr<Stream> stream;
  try {
    stream =
        co_await run_on(caller->executor, self->own_executor(), shake_hands_with(caller, *self->context));
  } catch (const std::exception&) {
    if (std::erase(self->unproved, caller) == 0)
      throw Error(ErrorCode::denied,
                  "it did not prove the secret, and was closed to make room for a newer connection");
    throw;
  }
  std::erase(self->unproved, caller);
  co_return stream;
}

Listener::Listener(asio::io_context& io, const Addresses& addresses, int port, std::string name)
    : state_(std::make_shared<State>(io, addresses, port, std::move(name))) {}

Listener::~Listener() {
  close();
  while (state_->drop_oldest()) {
  }
  state_->close_greeted();
}

int Listener::port() const { return state_->acceptors.front().local_endpoint().port(); }

void Listener::start(asio::ssl::context& context, Greet greet, Owner owner) {
  state_->context = &context;
  state_->greet = std::move(greet);
  state_->owner = std::move(owner);
  if (!state_->owner) state_->owner = [executor = state_->own_executor()] { return executor; };
  for (Tcp::acceptor& acceptor : state_->acceptors)
    asio::co_spawn(acceptor.get_executor(), State::accept_loop(state_, acceptor), asio::detached);
}

void Listener::close() {
  asio::error_code ignored;
  for (Tcp::acceptor& acceptor : state_->acceptors) acceptor.close(ignored);
}

bool Listener::make_room() { return state_->drop_oldest(); }

const std::string& Listener::last_refusal() const { return state_->refusals.last(); }

}  // namespace nzcl::bootstrap
