// Authenticated, encrypted streams between members: TLS 1.3 with a pre-shared key made from the job's secret.
// Both sides prove the key in the handshake, before either has said anything; keys of registered memory are
// not readable on the way.
#pragma once

#include <asio.hpp>
#include <asio/ssl.hpp>

#include <memory>
#include <string>
#include <string_view>

#include "runtime/bootstrap/bootstrap.h"

namespace nzcl::bootstrap {

using Tcp = asio::ip::tcp;
using Stream = asio::ssl::stream<Tcp::socket>;

/// 32 fresh random bytes, as 64 hexadecimal digits.
std::string random_secret();

/// A TLS context that accepts and offers only this key: no certificates, no older versions, no resumption.
std::unique_ptr<asio::ssl::context> make_psk_context(std::string_view secret);

/// A connection on which both sides have proved the key, within `limit`. Throws Error{denied} when the other
/// side does not know it (or speaks something else), std::system_error when it was not reached or went away.
asio::awaitable<std::shared_ptr<Stream>> connect_secure(asio::ssl::context& context, Tcp::endpoint endpoint,
                                                        std::chrono::seconds limit);
/// The same for a connection that was accepted.
asio::awaitable<std::shared_ptr<Stream>> accept_secure(asio::ssl::context& context, Tcp::socket socket,
                                                       std::chrono::seconds limit);

/// Frames: 4 bytes of length, little-endian, then the bytes. Longer ones than `limit` are refused.
inline constexpr std::uint32_t kHelloLimit = 4096;
inline constexpr std::uint32_t kFrameLimit = 256 << 20;
asio::awaitable<std::string> read_frame(Stream& stream, std::uint32_t limit);
asio::awaitable<void> write_frame(Stream& stream, std::string bytes);

/// "127.0.0.1:4711", or "?" for a socket that is not connected any more.
std::string peer_text(const Tcp::socket& socket);

}  // namespace nzcl::bootstrap
