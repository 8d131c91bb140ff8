// Where a packed result is written.
#pragma once

#include "nzcl/indices.h"

namespace nzcl {

/// Memory for a packed result: room for a number of blocks, and for their indices if these are wanted. It
/// need not be registered.
struct PackedMemory {
  void* values = nullptr;
  IndexBuffer indices = {};
};

}  // namespace nzcl
