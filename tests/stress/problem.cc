#include "tests/stress/problem.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "runtime/base/bitmap.h"
#include "tests/unit/reference.h"

namespace nzcl::stress {
namespace {

/// Writes a small whole number, which is exact in every type. It is rarely zero, and rarely -0.0.
void put(Draw& draw, DataType type, std::byte* to) {
  const auto store = [&](auto v) { std::memcpy(to, &v, sizeof v); };
  const int value = draw.number(-8, 8);
  const bool minus_zero = value == 0 && draw.chance(0.5);
  const float real = minus_zero ? -0.0f : static_cast<float>(value);
  switch (type) {
    case DataType::float32:
      return store(real);
    case DataType::float64:
      return store(static_cast<double>(real));
    case DataType::float16:
      return store(test::float_to_half(real));
    case DataType::bfloat16:
      return store(test::float_to_bfloat16(real));
    case DataType::int32:
      return store(static_cast<std::int32_t>(value));
    case DataType::int64:
      return store(static_cast<std::int64_t>(value));
    case DataType::uint8:
      return store(static_cast<std::uint8_t>(value + 8));
  }
}

/// Which of so many blocks a rank has: few, many, all or none, at random or in runs.
std::vector<bool> draw_blocks(Draw& draw, std::uint64_t blocks) {
  const double share = draw.pick({0.0, 0.001, 0.02, 0.1, 0.4, 0.9, 1.0});
  const bool runs = draw.chance(0.3);
  std::vector<bool> held(blocks);
  bool in_run = false;
  for (std::uint64_t b = 0; b < blocks; ++b) {
    if (!runs || draw.chance(0.1)) in_run = draw.chance(share);
    held[b] = in_run;
  }
  if (blocks > 0 && draw.chance(0.3)) held[blocks - 1] = true;  // which may be a partial one
  return held;
}

bool all_zero(std::span<const std::byte> bytes) {
  return std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{0}; });
}

/// An input in the shape of the tensor.
void fill_dense(Draw& draw, const Request& r, int rank, RankPart& part) {
  part.form = draw.pick({Form::scan, Form::scan, Form::bitmap, Form::bitmap, Form::dense});
  std::vector<bool> bits;
  for (std::size_t c = 0; c < r.chunks.size(); ++c) {
    if (!r.reads(rank, c)) continue;
    const std::size_t begin = part.bytes.size();
    const auto held = draw_blocks(draw, r.blocks_of(c));
    part.bytes.resize(begin + r.chunks[c] * r.element());
    for (std::uint64_t b = 0; b < held.size(); ++b) {
      const std::uint64_t first = b * r.block, end = std::min(r.chunks[c], first + r.block);
      for (std::uint64_t e = first; held[b] && e < end; ++e)
        put(draw, r.type, part.bytes.data() + begin + e * r.element());
      // A bitmap may also have blocks that are all zero.
      const auto block =
          std::span(part.bytes).subspan(begin + first * r.element(), (end - first) * r.element());
      const bool more = part.form == Form::dense || (part.form == Form::bitmap && draw.chance(0.02));
      bits.push_back(more || !all_zero(block));
    }
  }
  part.bits.assign(words_for(bits.size()), 0);
  for (std::uint64_t b = 0; b < bits.size(); ++b) {
    if (bits[b]) set_bit(std::span(part.bits), b);
  }
}

/// A list, in ascending order or in another one, some of its blocks several times.
void fill_list(Draw& draw, const Request& r, RankPart& part) {
  const auto held = draw_blocks(draw, r.blocks_of(0));
  for (std::uint64_t b = 0; b < held.size(); ++b) {
    const int times = !held[b] ? 0 : r.duplicates && draw.chance(0.2) ? draw.number(2, 3) : 1;
    part.indices.insert(part.indices.end(), static_cast<std::size_t>(times), static_cast<std::int64_t>(b));
  }
  if (r.duplicates || draw.chance(0.4)) {
    for (std::size_t i = part.indices.size(); i > 1; --i)
      std::swap(part.indices[i - 1], part.indices[draw.number(std::uint64_t{0}, i - 1)]);
  }
  part.bytes.resize(part.indices.size() * r.block * r.element());
  for (std::size_t e = 0; e < part.indices.size() * r.block; ++e)
    put(draw, r.type, part.bytes.data() + e * r.element());
}

/// One rank's contribution to a chunk, in the shape of the tensor.
struct Image {
  std::vector<std::byte> bytes;
  std::vector<bool> held;
};

Image image_of_list(const Request& r, const RankPart& part) {
  const std::uint64_t block_bytes = r.block * r.element();
  Image image{std::vector<std::byte>(r.blocks_of(0) * block_bytes), std::vector<bool>(r.blocks_of(0))};
  std::vector<std::pair<std::int64_t, std::size_t>> sorted;
  for (std::size_t i = 0; i < part.indices.size(); ++i) sorted.emplace_back(part.indices[i], i);
  std::ranges::sort(sorted);
  for (std::size_t i = 0; i < sorted.size();) {
    const auto block = static_cast<std::uint64_t>(sorted[i].first);
    std::vector<const std::byte*> group;
    for (; i < sorted.size() && static_cast<std::uint64_t>(sorted[i].first) == block; ++i)
      group.push_back(part.bytes.data() + sorted[i].second * block_bytes);
    const ReduceOp op = r.op == ReduceOp::avg ? ReduceOp::sum : r.op;
    const auto combined = test::reference_reduce(
        r.type, op, group, r.block, {.ranks = static_cast<int>(group.size()), .with_zero = false});
    std::ranges::copy(combined, image.bytes.begin() + static_cast<std::ptrdiff_t>(block * block_bytes));
    image.held[block] = true;
  }
  return image;
}

Image image_of(const Request& r, int rank, const RankPart& part, std::size_t chunk) {
  if (r.is_sparse()) return image_of_list(r, part);
  std::uint64_t bytes_before = 0, blocks_before = 0;
  for (std::size_t c = 0; c < chunk; ++c) {
    if (r.reads(rank, c)) bytes_before += r.chunks[c] * r.element(), blocks_before += r.blocks_of(c);
  }
  const auto begin = part.bytes.begin() + static_cast<std::ptrdiff_t>(bytes_before);
  Image image{{begin, begin + static_cast<std::ptrdiff_t>(r.chunks[chunk] * r.element())},
              std::vector<bool>(r.blocks_of(chunk))};
  for (std::uint64_t b = 0; b < image.held.size(); ++b)
    image.held[b] = test_bit(part.bits, blocks_before + b);
  return image;
}

Result reduce_chunk(const Problem& p, std::size_t chunk, int ranks) {
  const Request& r = p.request;
  std::vector<Image> images;
  for (int rank = 0; rank < ranks; ++rank) {
    if (r.reads(rank, chunk))
      images.push_back(image_of(r, rank, p.parts[static_cast<std::size_t>(rank)], chunk));
  }
  Result result{std::vector<std::byte>(r.chunks[chunk] * r.element()), std::vector<bool>(r.blocks_of(chunk))};
  for (std::uint64_t b = 0; b < result.blocks.size(); ++b) {
    const std::uint64_t at = b * r.block * r.element(),
                        elements = std::min(r.block, r.chunks[chunk] - b * r.block);
    std::vector<const std::byte*> sources;
    for (const Image& image : images) {
      if (image.held[b]) sources.push_back(image.bytes.data() + at);
    }
    if (sources.empty()) continue;
    result.blocks[b] = true;
    if (r.copies()) {
      std::copy_n(sources[0], elements * r.element(), result.bytes.data() + at);
      continue;
    }
    const bool with_zero = static_cast<int>(sources.size()) < ranks;
    const auto sum =
        test::reference_reduce(r.type, r.op, sources, elements, {.ranks = ranks, .with_zero = with_zero});
    std::ranges::copy(sum, result.bytes.data() + at);
  }
  return result;
}

}  // namespace

std::uint64_t Problem::union_blocks(int rank) const {
  std::uint64_t blocks = 0;
  for (std::size_t c = 0; c < results.size(); ++c) {
    if (request.gets(rank, c))
      blocks += static_cast<std::uint64_t>(std::ranges::count(results[c].blocks, true));
  }
  return blocks;
}

Problem make_problem(const Request& request, int ranks) {
  Problem p{.request = request, .parts = {}, .results = {}};
  Draw draw(request.seed);
  for (int rank = 0; rank < ranks; ++rank) {
    RankPart& part = p.parts.emplace_back();
    if (request.is_sparse()) {
      fill_list(draw, request, part);
    } else {
      fill_dense(draw, request, rank, part);
    }
  }
  for (std::size_t c = 0; c < request.chunks.size(); ++c) p.results.push_back(reduce_chunk(p, c, ranks));
  return p;
}

}  // namespace nzcl::stress
