// The bytes of a frame that may go to many members.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

namespace nzcl::bootstrap {

/// Two pieces, of which the second one may be missing. Frames for several members share the pieces that they
/// have in common, so that the sender needs no memory for each member.
struct FrameBytes {
  std::shared_ptr<const std::string> first, second;

  static FrameBytes of(std::string bytes) {
    return {std::make_shared<const std::string>(std::move(bytes)), nullptr};
  }
  std::size_t size() const { return first->size() + (second ? second->size() : 0); }
  std::string text() const { return second ? *first + *second : *first; }
};

}  // namespace nzcl::bootstrap
