#include "runtime/bootstrap/secure_stream.h"

#include <fmt/format.h>
#include <netinet/tcp.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "nzcl/error.h"
#include "runtime/bootstrap/addresses.h"

namespace nzcl::bootstrap {
namespace {

constexpr const char* kIdentity = "nzcl";
// The memory for a frame is at most the larger of this and twice what has arrived, whatever its header says.
constexpr std::size_t kFirstPiece = 64 << 10;
using Key = std::array<unsigned char, 32>;

/// The index under which an SSL_CTX owns its key. OpenSSL calls the lambda when it frees the SSL_CTX.
int key_index() {
  static const int index = SSL_CTX_get_ex_new_index(
      0, nullptr, nullptr, nullptr,
      [](void*, void* key, CRYPTO_EX_DATA*, int, long, void*) { delete static_cast<Key*>(key); });
  return index;
}

unsigned copy_key(SSL* ssl, unsigned char* psk, unsigned limit) {
  const auto* key = static_cast<const Key*>(SSL_CTX_get_ex_data(SSL_get_SSL_CTX(ssl), key_index()));
  if (key == nullptr || limit < key->size()) return 0;
  std::copy(key->begin(), key->end(), psk);
  return static_cast<unsigned>(key->size());
}

unsigned client_key(SSL* ssl, const char*, char* identity, unsigned identity_limit, unsigned char* psk,
                    unsigned psk_limit) {
  if (identity_limit <= std::strlen(kIdentity)) return 0;
  std::strcpy(identity, kIdentity);
  return copy_key(ssl, psk, psk_limit);
}

unsigned server_key(SSL* ssl, const char* identity, unsigned char* psk, unsigned psk_limit) {
  return std::strcmp(identity, kIdentity) == 0 ? copy_key(ssl, psk, psk_limit) : 0;
}

int refuse_certificate(X509_STORE_CTX* store, void*) {
  X509_STORE_CTX_set_error(store, X509_V_ERR_APPLICATION_VERIFICATION);
  return 0;
}

}  // namespace

std::unique_ptr<asio::ssl::context> make_psk_context(std::string_view secret) {
  auto context = std::make_unique<asio::ssl::context>(asio::ssl::context::tlsv13);
  SSL_CTX* ctx = context->native_handle();
  auto key = std::make_unique<Key>();
  const std::string material = "nzcl pre-shared key 1\n" + std::string(secret);
  unsigned bytes = 0;
  if (EVP_Digest(material.data(), material.size(), key->data(), &bytes, EVP_sha256(), nullptr) != 1 ||
      bytes != key->size() || SSL_CTX_set_ex_data(ctx, key_index(), key.get()) != 1) {
    throw Error(ErrorCode::internal, "OpenSSL: deriving the pre-shared key failed");
  }
  key.release();
  SSL_CTX_set_min_proto_version(ctx, TLS1_3_VERSION);
  // OpenSSL combines keys that come from these callbacks with SHA-256 only.
  SSL_CTX_set_ciphersuites(ctx, "TLS_AES_128_GCM_SHA256");
  SSL_CTX_set_num_tickets(ctx, 0);
  SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_OFF);
  // Only the key proves who the other side is. A server may ignore the offered key and answer with a
  // certificate instead, and OpenSSL accepts every certificate unless it is told to verify them. Here
  // verification always fails.
  SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER, nullptr);
  SSL_CTX_set_cert_verify_callback(ctx, refuse_certificate, nullptr);
  SSL_CTX_set_psk_client_callback(ctx, client_key);
  SSL_CTX_set_psk_server_callback(ctx, server_key);
  return context;
}

namespace {

/// Makes the connection end within seconds when the peer is dead, even when its whole host has vanished.
void watch_for_death(Tcp::socket& socket) {
  const auto set = [&](int level, int name, int value) {
    ::setsockopt(socket.native_handle(), level, name, &value, sizeof value);
  };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 5);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 2);
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, 10000);
  set(IPPROTO_TCP, TCP_NODELAY, 1);
}

/// Closes the connection when the time is over, so that reads and writes in progress end with an error. The
/// caller cancels the timer when it has finished in time.
std::shared_ptr<asio::steady_timer> limit_time(const std::shared_ptr<Stream>& stream,
                                               std::chrono::seconds limit) {
  auto timer = std::make_shared<asio::steady_timer>(stream->get_executor(), limit);
  timer->async_wait([stream, timer](asio::error_code error) {
    asio::error_code ignored;
    if (!error) stream->lowest_layer().close(ignored);
  });
  return timer;
}

Error denied(const char* why) {
  return Error(ErrorCode::denied,
               fmt::format("the other side does not know this job's secret, or is not nzcl ({})", why));
}

/// When this returns, the other side has proved the key. OpenSSL reports a handshake with a pre-shared key as
/// the resumption of a session, and there are no other sessions here that could be resumed.
asio::awaitable<void> shake_hands(Stream& stream, asio::ssl::stream_base::handshake_type side) {
  try {
    co_await stream.async_handshake(side, asio::use_awaitable);
  } catch (const std::system_error& e) {
    if (e.code().category() != asio::error::get_ssl_category()) throw;
    throw denied(e.what());
  }
  if (SSL_session_reused(stream.native_handle()) != 1) throw denied("it did not use the key");
}

/// OpenSSL refuses pre-shared keys on a server that verifies certificates until the server has named the
/// context in which they are valid. Only the server may do it: the client's key belongs to no context.
void name_session_context(Stream& stream) {
  SSL_set_session_id_context(stream.native_handle(), reinterpret_cast<const unsigned char*>(kIdentity),
                             static_cast<unsigned>(std::strlen(kIdentity)));
}

/// A socket that connects to a port of its own host may get just this port as its own. If nobody listens
/// there, TCP connects the socket with itself (RFC 9293, 3.5, simultaneous open), and then nobody else can
/// listen on the port. Such a connection is therefore closed at once and treated as refused.
void refuse_self(Tcp::socket& socket) {
  if (socket.local_endpoint() != socket.remote_endpoint()) return;
  socket.set_option(asio::socket_base::linger(true, 0));  // closes with a reset, which frees the port at once
  socket.close();
  throw asio::system_error(asio::error::connection_refused);
}

}  // namespace

asio::awaitable<std::shared_ptr<Stream>> connect_secure(asio::ssl::context& context, Tcp::endpoint endpoint,
                                                        std::chrono::seconds limit) {
  auto stream =
      std::make_shared<Stream>(open_socket(co_await asio::this_coro::executor, endpoint.protocol()), context);
  const auto timer = limit_time(stream, limit);
  const auto cancel = std::shared_ptr<void>(nullptr, [timer](void*) { timer->cancel(); });
  co_await stream->lowest_layer().async_connect(endpoint, asio::use_awaitable);
  refuse_self(stream->next_layer());
  co_await shake_hands(*stream, asio::ssl::stream_base::client);
  watch_for_death(stream->next_layer());
  co_return stream;
}

asio::awaitable<void> accept_secure(std::shared_ptr<Stream> stream, std::chrono::seconds limit) {
  const auto timer = limit_time(stream, limit);
  const auto cancel = std::shared_ptr<void>(nullptr, [timer](void*) { timer->cancel(); });
  name_session_context(*stream);
  co_await shake_hands(*stream, asio::ssl::stream_base::server);
  watch_for_death(stream->next_layer());
}

asio::awaitable<std::string> read_frame(Stream& stream, std::uint32_t limit) {
  std::uint32_t bytes = 0;
  co_await asio::async_read(stream, asio::buffer(&bytes, sizeof bytes), asio::use_awaitable);
  if (bytes > limit)
    throw Error(ErrorCode::denied,
                fmt::format("it sent a frame of {} bytes, but at most {} are allowed", bytes, limit));
  std::string text;
  while (text.size() < bytes) {
    const std::size_t begin = text.size();
    text.resize(std::min<std::size_t>(bytes, std::max(2 * begin, kFirstPiece)));
    co_await asio::async_read(stream, asio::buffer(text) + begin, asio::use_awaitable);
  }
  co_return text;
}

asio::awaitable<void> write_frame(Stream& stream, FrameBytes bytes) {
  const auto size = static_cast<std::uint32_t>(bytes.size());
  const std::array<asio::const_buffer, 3> parts{
      asio::buffer(&size, sizeof size), asio::buffer(*bytes.first),
      bytes.second ? asio::buffer(*bytes.second) : asio::const_buffer()};
  co_await asio::async_write(stream, parts, asio::use_awaitable);
}

asio::awaitable<void> write_frame(Stream& stream, std::string bytes) {
  return write_frame(stream, FrameBytes::of(std::move(bytes)));
}

std::string peer_text(const Tcp::socket& socket) {
  asio::error_code error;
  const auto endpoint = socket.remote_endpoint(error);
  return error ? "?" : text_of(endpoint);
}

}  // namespace nzcl::bootstrap
