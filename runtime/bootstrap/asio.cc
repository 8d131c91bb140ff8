// The part of Asio that is no template (ASIO_SEPARATE_COMPILATION).
#include <asio/impl/src.hpp>
#include <asio/ssl/impl/src.hpp>
