// Errors of libtorch without the frames of the stack that they came through.
#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <string>

namespace nzcl_torch {

/// The first line or lines that say what is wrong. A user cannot use the addresses that libtorch adds.
inline std::string text_of(const std::exception& error) {
  const auto* const of_torch = dynamic_cast<const c10::Error*>(&error);
  return of_torch != nullptr ? of_torch->what_without_backtrace() : error.what();
}

}  // namespace nzcl_torch
