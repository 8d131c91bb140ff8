#include "runtime/bootstrap/listener.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <deque>
#include <vector>

#include "nzcl/error.h"
#include "runtime/bootstrap/refusals.h"
#include "runtime/bootstrap/sockets.h"

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

void close_at_once(Stream& stream) {
  asio::error_code ignored;
  stream.lowest_layer().close(ignored);
}

}  // namespace

struct Listener::State {
  State(asio::io_context& io, const Addresses& addresses, int port, std::string name)
      : acceptors(open_acceptors(io, addresses, port)), refusals(std::move(name)) {}

  /// Closes the oldest connection that has not proved the key. Returns false if there is none.
  bool drop_oldest() {
    if (unproved.empty()) return false;
    close_at_once(*unproved.front());
    unproved.pop_front();
    return true;
  }

  Acceptors acceptors;  // of all addresses
  asio::ssl::context* context = nullptr;
  Greet greet;
  std::deque<std::shared_ptr<Stream>> unproved;  // connections that have not proved the key, oldest first
  std::vector<std::shared_ptr<Stream>> greeted;  // those that have, while they are greeted
  Refusals refusals;

  static asio::awaitable<void> accept_loop(std::shared_ptr<State> self, Tcp::acceptor& acceptor);
  static asio::awaitable<void> admit(std::shared_ptr<State> self, std::shared_ptr<Stream> stream);
  static asio::awaitable<void> prove(std::shared_ptr<State> self, std::shared_ptr<Stream> stream);
};

/// `acceptor` is one of the state's own.
asio::awaitable<void> Listener::State::accept_loop(std::shared_ptr<State> self, Tcp::acceptor& acceptor) {
  asio::steady_timer pause(acceptor.get_executor());
  while (acceptor.is_open()) {
    asio::error_code error;
    Tcp::socket socket = co_await accept(acceptor, error);
    if (!acceptor.is_open()) break;
    if (!error) {
      if (self->unproved.size() == kUnprovedLimit) self->drop_oldest();
      auto stream = std::make_shared<Stream>(std::move(socket), *self->context);
      self->unproved.push_back(stream);
      asio::co_spawn(pause.get_executor(), admit(self, std::move(stream)), asio::detached);
      continue;
    }
    self->refusals.note("an unknown address", error.message());
    if (is_shortage(error) && self->drop_oldest()) continue;
    pause.expires_after(kErrorPause);
    co_await pause.async_wait(asio::use_awaitable);
  }
}

asio::awaitable<void> Listener::State::admit(std::shared_ptr<State> self, std::shared_ptr<Stream> stream) {
  const std::string from = peer_text(stream->next_layer());
  try {
    co_await prove(self, stream);
    self->greeted.push_back(stream);
    co_await self->greet(stream);
  } catch (const std::exception& e) {
    if (!was_only_a_look(e)) self->refusals.note(from, e.what());
  }
  std::erase(self->greeted, stream);
}

asio::awaitable<void> Listener::State::prove(std::shared_ptr<State> self, std::shared_ptr<Stream> stream) {
  try {
    co_await accept_secure(stream, kStrangersTime);
  } catch (const std::exception&) {
    if (std::erase(self->unproved, stream) == 0)
      throw Error(ErrorCode::denied,
                  "it did not prove the secret, and was closed to make room for a newer connection");
    throw;
  }
  std::erase(self->unproved, stream);
}

Listener::Listener(asio::io_context& io, const Addresses& addresses, int port, std::string name)
    : state_(std::make_shared<State>(io, addresses, port, std::move(name))) {}

Listener::~Listener() {
  close();
  while (state_->drop_oldest()) {
  }
  for (const auto& stream : state_->greeted) close_at_once(*stream);
}

int Listener::port() const { return state_->acceptors.front().local_endpoint().port(); }

void Listener::start(asio::ssl::context& context, Greet greet) {
  state_->context = &context;
  state_->greet = std::move(greet);
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
