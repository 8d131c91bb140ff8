// Authenticated, encrypted streams between members: TLS 1.3 with a pre-shared key made from the job's secret.
// Both sides prove the key in the handshake, before either sends anything else. The streams are encrypted
// because keys of registered memory travel through them.
#pragma once

#include <asio.hpp>
#include <asio/ssl.hpp>

#include <memory>
#include <string>
#include <string_view>

#include "runtime/bootstrap/frame_bytes.h"
#include "runtime/bootstrap/sockets.h"

namespace nzcl::bootstrap {

using Stream = asio::ssl::stream<Tcp::socket>;

/// A TLS context that offers and accepts only the key made from `secret`: no certificates, no older versions
/// of TLS, no resumption of sessions.
std::unique_ptr<asio::ssl::context> make_psk_context(std::string_view secret);

/// Connects to `endpoint` within `limit`, and returns when both sides have proved the key. Throws
/// Error{denied} when the other side does not know the key or does not speak TLS, and std::system_error when
/// it cannot be reached or closes the connection.
asio::awaitable<std::shared_ptr<Stream>> connect_secure(asio::ssl::context& context, Tcp::endpoint endpoint,
                                                        std::chrono::seconds limit);
/// The same for a connection that a listener has accepted.
asio::awaitable<void> accept_secure(std::shared_ptr<Stream> stream, std::chrono::seconds limit);

/// A frame is 4 bytes of length, little-endian, and then as many bytes. Frames longer than `limit` are
/// refused with Error{denied}; see frames.h for the limits.
asio::awaitable<std::string> read_frame(Stream& stream, std::uint32_t limit);
asio::awaitable<void> write_frame(Stream& stream, FrameBytes bytes);
asio::awaitable<void> write_frame(Stream& stream, std::string bytes);

/// "127.0.0.1:4711" or "[::1]:4711", or "?" for a socket that is not connected any more.
std::string peer_text(const Tcp::socket& socket);

}  // namespace nzcl::bootstrap
