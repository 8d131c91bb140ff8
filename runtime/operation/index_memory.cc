#include "runtime/operation/index_memory.h"

#include <fmt/format.h>

#include <limits>
#include <string_view>

namespace nzcl::engine {
namespace {

struct Range {
  std::string_view name;
  std::uint64_t most = 0;  // the largest index that the type holds
};

Range range_of(IndexType type) {
  switch (type) {
    case IndexType::int32:
      return {"int32", std::numeric_limits<std::int32_t>::max()};
    case IndexType::uint32:
      return {"uint32", std::numeric_limits<std::uint32_t>::max()};
    case IndexType::int64:
      break;
  }
  return {"int64", std::numeric_limits<std::int64_t>::max()};
}

}  // namespace

std::optional<std::string> wrong_with_index_memory(const IndexBuffer& memory, std::uint64_t blocks) {
  if (static_cast<int>(memory.type()) >= kIndexTypes)
    return fmt::format("index type {} does not exist", static_cast<int>(memory.type()));
  const auto [name, most] = range_of(memory.type());
  if (memory.data() == nullptr || blocks == 0 || blocks - 1 <= most) return std::nullopt;
  return fmt::format("{} holds indices up to {}, and the tensor has {} blocks; give memory for int64", name,
                     most, blocks);
}

}  // namespace nzcl::engine
