#include "runtime/bootstrap/listener.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <deque>

#include "nzcl/error.h"
#include "runtime/base/log.h"
#include "runtime/bootstrap/sockets.h"

namespace nzcl::bootstrap {
namespace {

// How long a connection may take to prove the key.
constexpr std::chrono::seconds kStrangersTime{10};
// The pause before accept() is tried again after an error that closing a connection does not remedy.
constexpr std::chrono::milliseconds kErrorPause{20};
// So many refusals are logged as warnings. Later ones are logged at level debug, so that strangers cannot
// fill the log.
constexpr int kLoudRefusals = 10;

/// Whether accept() failed for want of descriptors or memory, which closing another connection sets free.
bool is_shortage(const asio::error_code& error) {
  constexpr std::array kShortages{EMFILE, ENFILE, ENOBUFS, ENOMEM};
  return error.category() == asio::error::get_system_category() &&
         std::find(kShortages.begin(), kShortages.end(), error.value()) != kShortages.end();
}

}  // namespace

struct Listener::State {
  State(asio::io_context& io, const Tcp::endpoint& endpoint, std::string n)
      : acceptor(open_acceptor(io, endpoint)), name(std::move(n)) {}

  void refuse(const std::string& from, const std::string& why) {
    last_refusal = fmt::format("{}: {}", from, why);
    const auto level = refusals++ < kLoudRefusals ? spdlog::level::warn : spdlog::level::debug;
    log().log(level, "{}: refused a connection from {}", name, last_refusal);
  }

  /// Closes the oldest connection that has not proved the key. Returns false if there is none.
  bool drop_oldest() {
    if (unproved.empty()) return false;
    asio::error_code ignored;
    unproved.front()->lowest_layer().close(ignored);
    unproved.pop_front();
    return true;
  }

  Tcp::acceptor acceptor;
  const std::string name;
  asio::ssl::context* context = nullptr;
  Greet greet;
  std::deque<std::shared_ptr<Stream>> unproved;  // connections that have not proved the key, oldest first
  std::string last_refusal;
  int refusals = 0;

  static asio::awaitable<void> accept_loop(std::shared_ptr<State> self);
  static asio::awaitable<void> admit(std::shared_ptr<State> self, std::shared_ptr<Stream> stream);
  static asio::awaitable<void> prove(std::shared_ptr<State> self, std::shared_ptr<Stream> stream);
};

asio::awaitable<void> Listener::State::accept_loop(std::shared_ptr<State> self) {
  asio::steady_timer pause(self->acceptor.get_executor());
  while (self->acceptor.is_open()) {
    asio::error_code error;
    Tcp::socket socket = co_await accept(self->acceptor, error);
    if (!self->acceptor.is_open()) break;
    if (!error) {
      if (self->unproved.size() == kUnprovedLimit) self->drop_oldest();
      auto stream = std::make_shared<Stream>(std::move(socket), *self->context);
      self->unproved.push_back(stream);
      asio::co_spawn(pause.get_executor(), admit(self, std::move(stream)), asio::detached);
      continue;
    }
    self->refuse("an unknown address", error.message());
    if (is_shortage(error) && self->drop_oldest()) continue;
    pause.expires_after(kErrorPause);
    co_await pause.async_wait(asio::use_awaitable);
  }
}

asio::awaitable<void> Listener::State::admit(std::shared_ptr<State> self, std::shared_ptr<Stream> stream) {
  const std::string from = peer_text(stream->next_layer());
  try {
    co_await prove(self, stream);
    co_await self->greet(stream);
  } catch (const std::exception& e) {
    self->refuse(from, e.what());
  }
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

Listener::Listener(asio::io_context& io, const Tcp::endpoint& endpoint, std::string name)
    : state_(std::make_shared<State>(io, endpoint, std::move(name))) {}

Listener::~Listener() {
  close();
  while (state_->drop_oldest()) {
  }
}

int Listener::port() const { return state_->acceptor.local_endpoint().port(); }

void Listener::start(asio::ssl::context& context, Greet greet) {
  state_->context = &context;
  state_->greet = std::move(greet);
  asio::co_spawn(state_->acceptor.get_executor(), State::accept_loop(state_), asio::detached);
}

void Listener::close() {
  asio::error_code ignored;
  state_->acceptor.close(ignored);
}

const std::string& Listener::last_refusal() const { return state_->last_refusal; }

}  // namespace nzcl::bootstrap
