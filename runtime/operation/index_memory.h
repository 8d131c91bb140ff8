// Memory for indices: what one takes, and whether a caller's can hold those of a tensor's blocks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "nzcl/indices.h"

namespace nzcl {

/// The size of one index.
constexpr std::uint64_t index_bytes(IndexType type) { return type == IndexType::int64 ? 8 : 4; }

}  // namespace nzcl

namespace nzcl::engine {

/// Returns why the memory cannot hold the index of every one of `blocks` blocks, or nothing if it can, or if
/// no memory is given. Indices are written by lanes while the operation runs, so this is checked once, before
/// anything is written, and not for the blocks that a result happens to have.
std::optional<std::string> wrong_with_index_memory(const IndexBuffer& memory, std::uint64_t blocks);

}  // namespace nzcl::engine
