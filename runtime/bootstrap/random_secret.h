// Makes secrets: for file meetings, for the control plane, and for users who run nzcl_info --new-secret.
#pragma once

#include <string>

namespace nzcl::bootstrap {

/// 32 fresh random bytes, as 64 hexadecimal digits. Throws Error{system} when OpenSSL cannot provide them.
std::string random_secret();

}  // namespace nzcl::bootstrap
