#include "runtime/bootstrap/random_secret.h"

#include <fmt/format.h>
#include <openssl/rand.h>

#include <array>

#include "nzcl/error.h"

namespace nzcl::bootstrap {

std::string random_secret() {
  std::array<unsigned char, 32> bytes{};
  if (RAND_bytes(bytes.data(), static_cast<int>(bytes.size())) != 1)
    throw Error(ErrorCode::system, "OpenSSL could not provide random bytes for a secret");
  std::string text;
  for (const unsigned char byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

}  // namespace nzcl::bootstrap
