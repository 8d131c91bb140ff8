#include "runtime/capi/unique_id.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>

#include "nzcl/error.h"
#include "nzcl/options.h"
#include "runtime/bootstrap/host_address.h"
#include "runtime/bootstrap/random_secret.h"

namespace nzcl::capi {
namespace {

constexpr std::string_view kMark = "nzcl1 ";

std::string own_address() {
  const std::string configured = options_from_environment().master_addr;
  if (!configured.empty()) return configured;
  return bootstrap::host_addresses().front();
}

int free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  socklen_t bytes = sizeof address;
  const bool good = fd >= 0 && ::bind(fd, reinterpret_cast<sockaddr*>(&address), bytes) == 0 &&
                    ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &bytes) == 0;
  const int error = errno;
  if (fd >= 0) ::close(fd);
  if (!good)
    throw Error(ErrorCode::system, fmt::format("cannot find a free TCP port: {}", std::strerror(error)));
  return ntohs(address.sin_port);
}

}  // namespace

UniqueId make_unique_id() { return {own_address(), free_port(), bootstrap::random_secret()}; }

void write_unique_id(const UniqueId& content, nzclUniqueId& id) {
  const std::string text = fmt::format("{}{} {} {}", kMark, content.secret, content.port, content.host);
  if (text.size() >= sizeof id.internal)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the address {} is too long for a unique id", content.host));
  std::memset(id.internal, 0, sizeof id.internal);
  std::memcpy(id.internal, text.data(), text.size());
}

UniqueId read_unique_id(const nzclUniqueId& id) {
  const std::string_view text(id.internal, ::strnlen(id.internal, sizeof id.internal));
  const auto secret_end = text.find(' ', kMark.size());
  const auto port_end = secret_end == text.npos ? text.npos : text.find(' ', secret_end + 1);
  UniqueId content;
  if (text.starts_with(kMark) && port_end != text.npos) {
    content.secret = text.substr(kMark.size(), secret_end - kMark.size());
    std::from_chars(text.data() + secret_end + 1, text.data() + port_end, content.port);
    content.host = text.substr(port_end + 1);
  }
  if (content.port <= 0 || content.host.empty())
    throw Error(ErrorCode::invalid_argument, "the unique id was not made by nzclGetUniqueId");
  return content;
}

}  // namespace nzcl::capi
