#include "runtime/comm/lists/index_list.h"

#include <fmt/format.h>
#include <hwy/contrib/sort/vqsort.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>

#include "nzcl/error.h"
#include "runtime/base/bitmap.h"
#include "runtime/kernels/index_stream.h"
#include "runtime/kernels/reduce.h"

namespace nzcl::comm {
namespace {

[[noreturn]] void reject(const std::string& text) {
  throw Error(ErrorCode::invalid_argument, "allreduce: " + text);
}

/// Calls f with the list as a span of its type.
template <class F>
auto visit(const IndexSpan& indices, F f) {
  const std::size_t n = indices.size();
  switch (indices.type()) {
    case IndexType::int32:
      return f(std::span(static_cast<const std::int32_t*>(indices.data()), n));
    case IndexType::uint32:
      return f(std::span(static_cast<const std::uint32_t*>(indices.data()), n));
    case IndexType::int64:
      break;
  }
  return f(std::span(static_cast<const std::int64_t*>(indices.data()), n));
}

}  // namespace

IndexList::IndexList(const IndexSpan& indices, std::uint64_t blocks, bool duplicates) : ascending_(indices) {
  if (static_cast<int>(indices.type()) >= kIndexTypes)
    reject(fmt::format("index type {} does not exist", static_cast<int>(indices.type())));
  if (indices.empty()) return;
  if (indices.data() == nullptr) reject("indices is null");
  visit(indices, [&](auto list) {
    const IndexCheck check = check_indices(list, blocks);
    if (check.outside < list.size())
      reject(fmt::format("block index {} is not below the block count {}", list[check.outside], blocks));
    if (check.descent < list.size() || check.duplicate < list.size()) sort(indices, duplicates);
  });
}

void IndexList::sort(const IndexSpan& indices, bool duplicates) {
  std::vector<hwy::uint128_t> keys(indices.size());
  visit(indices, [&](auto list) {
    for (std::size_t i = 0; i < list.size(); ++i) keys[i] = {i, static_cast<std::uint64_t>(list[i])};
  });
  hwy::Sorter()(keys.data(), keys.size(), hwy::SortAscending());
  order_.reserve(keys.size());
  own_.reserve(keys.size());
  group_ends_.reserve(keys.size());
  for (const hwy::uint128_t& key : keys) {
    const auto index = static_cast<std::int64_t>(key.hi);
    order_.push_back(key.lo);
    if (own_.empty() || own_.back() != index) {
      own_.push_back(index);
      group_ends_.push_back(order_.size());
    } else if (duplicates) {
      ++group_ends_.back();
    } else {
      reject(fmt::format(
          "block index {} is there twice; every index may occur once, unless sum_duplicates is set", index));
    }
  }
  ascending_ = own_;
}

void IndexList::check_sums(const void* values, std::uint64_t count, std::uint64_t block_elems, DataType type,
                           ReduceOp op) const {
  if (type != DataType::uint8 || op != ReduceOp::avg || !has_duplicates()) return;
  const auto* from = static_cast<const std::uint8_t*>(values);
  std::size_t at = 0;
  for (std::size_t i = 0; i < own_.size(); ++i) {
    const std::size_t begin = at, end = at = group_ends_[i];
    if (end - begin == 1) continue;
    const auto first = static_cast<std::uint64_t>(own_[i]) * block_elems;
    for (std::uint64_t e = 0; e < std::min(block_elems, count - first); ++e) {
      std::uint64_t sum = 0;
      for (std::size_t place = begin; place < end; ++place) sum += from[order_[place] * block_elems + e];
      if (sum > std::numeric_limits<std::uint8_t>::max())
        reject(
            fmt::format("the blocks of index {} add up to {} in element {}, and uint8 holds 255; average "
                        "them in a wider type",
                        own_[i], sum, first + e));
    }
  }
}

std::vector<std::byte> IndexList::sorted_values(const void* values, std::uint64_t block_elems, DataType type,
                                                ReduceOp op) const {
  const std::uint64_t block_bytes = block_elems * element_bytes(type);
  const auto* from = static_cast<const std::byte*>(values);
  std::vector<std::byte> sorted(ascending_.size() * block_bytes);
  if (!has_duplicates()) {
    for (std::size_t i = 0; i < order_.size(); ++i)
      std::memcpy(sorted.data() + i * block_bytes, from + order_[i] * block_bytes, block_bytes);
    return sorted;
  }
  const ReduceFn reduce = reduce_kernel(type, op == ReduceOp::avg ? ReduceOp::sum : op);
  std::vector<const std::byte*> group;
  std::size_t at = 0;
  for (std::size_t i = 0; i < ascending_.size(); ++i) {
    group.clear();
    const std::size_t end = group_ends_[i];
    for (; at < end; ++at) group.push_back(from + order_[at] * block_bytes);
    std::byte* const to = sorted.data() + i * block_bytes;
    if (group.size() == 1) {
      std::memcpy(to, group.front(), block_bytes);
    } else {
      reduce(to, group.data(), group.size(), block_elems,
             {.ranks = static_cast<int>(group.size()), .with_zero = false});
    }
  }
  return sorted;
}

std::vector<std::uint64_t> IndexList::bitmap(std::uint64_t blocks) const {
  std::vector<std::uint64_t> bits(words_for(blocks));
  visit(ascending_, [&](auto list) {
    for (const auto index : list) set_bit(std::span(bits), static_cast<std::uint64_t>(index));
  });
  return bits;
}

engine::ElementStream IndexList::stream(const engine::SliceLayout& layout, const std::byte* values,
                                        std::uint64_t block_elems, const verbs::MemoryRegion* region,
                                        DataType type, ReduceOp op) const {
  engine::ElementStream stream;
  stream.units = units(layout);
  stream.values = values;
  stream.region = region;
  if (!order_.empty()) {
    stream.own_values = sorted_values(values, block_elems, type, op);
    stream.values = stream.own_values.data();
    stream.region = nullptr;
  }
  return stream;
}

engine::StreamUnits IndexList::units(const engine::SliceLayout& layout) const {
  const std::uint64_t each = layout.block_units();
  engine::StreamUnits units(ascending_.size() * each, layout);
  visit(ascending_, [&](auto list) {
    if (each == 1) return units.append(list);
    const std::uint64_t all = layout.units_of_tiles(0, layout.tiles());
    std::vector<std::int64_t> of_block(each);
    for (const auto index : list) {
      const std::uint64_t first = static_cast<std::uint64_t>(index) * each;
      std::iota(of_block.begin(), of_block.end(), static_cast<std::int64_t>(first));
      units.append(std::span<const std::int64_t>(of_block).first(std::min(each, all - first)));
    }
  });
  units.end();
  return units;
}

}  // namespace nzcl::comm
