// Finds out whether memory is mapped in this process.
#pragma once

#include <cstddef>
#include <span>

namespace nzcl::comm {

/// Returns false if a page of the range is not mapped. It does not matter what is mapped, be it memory, a
/// file or a device, and no page is read or made present. The call costs one system call, however long the
/// range is.
bool is_mapped(std::span<const std::byte> range);

}  // namespace nzcl::comm
