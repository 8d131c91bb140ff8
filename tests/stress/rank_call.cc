#include "tests/stress/rank_call.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <future>
#include <span>
#include <thread>

#include "runtime/base/bitmap.h"

namespace nzcl::stress {
namespace {

constexpr std::byte kGuard{0xa7}, kUntouched{0x5a};
constexpr std::size_t kGuardBytes = 64;

std::size_t bytes_of(IndexType type) { return type == IndexType::int64 ? 8 : 4; }

void write_index(IndexType type, std::byte* to, std::size_t i, std::int64_t value) {
  const auto store = [&](auto v) { std::memcpy(to + i * sizeof v, &v, sizeof v); };
  switch (type) {
    case IndexType::int32:
      return store(static_cast<std::int32_t>(value));
    case IndexType::uint32:
      return store(static_cast<std::uint32_t>(value));
    case IndexType::int64:
      return store(value);
  }
}

std::int64_t read_index(IndexType type, const std::byte* from, std::size_t i) {
  const auto load = [&](auto v) {
    std::memcpy(&v, from + i * sizeof v, sizeof v);
    return static_cast<std::int64_t>(v);
  };
  switch (type) {
    case IndexType::int32:
      return load(std::int32_t{});
    case IndexType::uint32:
      return load(std::uint32_t{});
    case IndexType::int64:
      break;
  }
  return load(std::int64_t{});
}

IndexType draw_type(Draw& draw) { return static_cast<IndexType>(draw.number(0, kIndexTypes - 1)); }

}  // namespace

Memory::Memory(std::size_t front, std::size_t bytes, std::size_t guard)
    : all_(front + bytes + guard, kUntouched), front_(front), guard_(guard) {
  std::fill(all_.end() - static_cast<std::ptrdiff_t>(guard), all_.end(), kGuard);
}

bool Memory::guard_is_whole() const {
  return std::all_of(all_.end() - static_cast<std::ptrdiff_t>(guard_), all_.end(),
                     [](std::byte b) { return b == kGuard; });
}

RankCall::RankCall(Communicator& communicator, const Problem& problem, Draw& draw)
    : communicator_(communicator), problem_(problem), draw_(draw), rank_(communicator.rank()) {
  place_input();
  if (request().kind == Kind::packed) place_packed();
  if (request().counts_given) counts_ = request().chunks;
}

/// Puts the input where it belongs, and finds a place for the result: the same, or another one.
void RankCall::place_input() {
  const Request& r = request();
  const std::size_t element = r.element(), front = draw_.number(std::uint64_t{0}, std::uint64_t{5}) * element;
  std::size_t result = 0, before_own = 0;
  for (std::size_t c = 0; c < r.chunks.size(); ++c) {
    if (r.gets(rank_, c) || r.kind == Kind::broadcast) result += r.chunks[c] * element;
    if (static_cast<int>(c) < rank_) before_own += r.chunks[c] * element;
  }
  if (r.kind == Kind::packed) result = 0;
  const bool gathers = r.kind == Kind::allgather, scatters = r.kind == Kind::reduce_scatter;
  in_place_ = r.kind == Kind::broadcast || (!r.is_sparse() && draw_.chance(0.5));
  if (in_place_ && (gathers || r.kind == Kind::broadcast)) {  // the result is the larger of the two
    output_ = Memory(front, result, kGuardBytes);
    out_ = output_.data();
    in_ = out_ + (gathers ? before_own : 0);
  } else {
    // An input that is the output as well has a guard.
    input_ = Memory(front, part().bytes.size(), in_place_ ? kGuardBytes : 0);
    in_ = input_.data();
    output_ = Memory(front, in_place_ ? 0 : result, kGuardBytes);
    out_ = in_place_ ? in_ + (scatters ? before_own : 0) : output_.data();
  }
  if (!part().bytes.empty()) std::memcpy(in_, part().bytes.data(), part().bytes.size());
  if (part().form == Form::bitmap && !part().bits.empty()) bitmap_ = part().bits;
  // What a caller sets behind the last block counts for nothing.
  std::uint64_t blocks = 0;
  for (std::size_t c = 0; c < r.chunks.size(); ++c) blocks += r.reads(rank_, c) ? r.blocks_of(c) : 0;
  if (!bitmap_.empty() && blocks % 64 != 0 && draw_.chance(0.5)) bitmap_.back() |= ~low_bits(blocks % 64);
  if (input_.size() > 0) registered_in_ = communicator_.register_buffer(input_.data(), input_.size());
  if (output_.size() > 0) registered_out_ = communicator_.register_buffer(output_.data(), output_.size());
}

void RankCall::place_packed() {
  const Request& r = request();
  const std::uint64_t needed = problem_.union_blocks(rank_);
  capacity_ = needed;
  if (r.too_small && needed > 0) {
    capacity_ = draw_.number(std::uint64_t{0}, needed - 1);
  } else if (draw_.chance(0.3)) {
    capacity_ = draw_.number(std::uint64_t{0}, needed);
    grows_ = true;
  } else if (draw_.chance(0.3)) {
    capacity_ += draw_.number(std::uint64_t{0}, std::uint64_t{100});
  }
  packed_type_ = draw_type(draw_);
  output_ = Memory(0, capacity_ * r.block * r.element(), kGuardBytes);
  out_ = output_.data();
  if (draw_.chance(0.7)) packed_indices_ = Memory(0, capacity_ * bytes_of(packed_type_), kGuardBytes);
}

void RankCall::start() {
  try {
    work_ = call();
  } catch (const Error& e) {
    refusal_ = e.what();
    if (refusal_.empty()) refusal_ = "an error without a text";
  }
}

Work RankCall::call() {
  if (request().kind == Kind::allreduce) return call_allreduce();
  return request().is_sparse() ? call_sparse() : call_collective();
}

/// Where a rank is to be refused, it passes memory that is not registered.
std::byte* RankCall::moved(std::byte* pointer) const {
  alignas(16) static std::byte elsewhere[16];
  return request().refusing == rank_ ? elsewhere : pointer;
}

Work RankCall::call_allreduce() {
  const Request& r = request();
  return communicator_.allreduce({.input = moved(in_),
                                  .output = out_,
                                  .count = r.chunks[0],
                                  .type = r.type,
                                  .op = r.op,
                                  .block_elems = r.block,
                                  .bitmap = bitmap_,
                                  .dense = part().form == Form::dense,
                                  .tag = r.tag,
                                  .wire_type = r.wire_type,
                                  .algorithm = r.algorithm,
                                  .expected_density = r.expected_density});
}

Work RankCall::call_sparse() {
  const Request& r = request();
  given_type_ = draw_type(draw_);
  given_indices_ = Memory(0, part().indices.size() * bytes_of(given_type_), 0);
  for (std::size_t i = 0; i < part().indices.size(); ++i)
    write_index(given_type_, given_indices_.data(), i, part().indices[i]);
  SparseAllreduceRequest q{.values = in_,
                           .indices = {given_indices_.data(), part().indices.size(), given_type_},
                           .count = r.chunks[0],
                           .type = r.type,
                           .op = r.op,
                           .block_elems = r.block,
                           .sum_duplicates = r.duplicates,
                           .wire_type = r.wire_type,
                           .tag = r.tag,
                           .algorithm = r.algorithm,
                           .expected_density = r.expected_density};
  if (r.kind == Kind::sparse) {
    q.output = moved(out_);
  } else {
    q.packed_values = out_;
    q.packed_capacity = request().refusing == rank_ ? ~std::uint64_t{0} : capacity_;
    if (packed_indices_.size() > 0) q.packed_indices = {packed_indices_.data(), packed_type_};
    if (grows_ || capacity_ == 0)
      q.packed_grow = [this](std::uint64_t blocks) -> PackedMemory {
        grown_ = Memory(0, blocks * request().block * request().element(), kGuardBytes);
        grown_indices_ = Memory(0, blocks * bytes_of(packed_type_), kGuardBytes);
        return {grown_.data(), {grown_indices_.data(), packed_type_}};
      };
    if (r.too_small && capacity_ > 0) q.packed_grow = {};
  }
  return communicator_.allreduce_sparse(q);
}

Work RankCall::call_collective() {
  const Request& r = request();
  const auto fill = [&](auto q) {
    q.count = r.chunks[0];
    q.type = r.type;
    q.block_elems = r.block;
    q.bitmap = bitmap_;
    q.dense = part().form == Form::dense;
    q.tag = r.tag;
    if constexpr (requires { q.input; }) {
      q.input = moved(in_);
      q.output = out_;
    }
    if constexpr (requires { q.op; }) q.op = r.op;
    if constexpr (requires { q.root; }) q.root = r.root;
    if constexpr (requires { q.counts; }) q.counts = counts_;
    if constexpr (requires { q.data; }) q.data = moved(in_);
    return q;
  };
  if (r.kind == Kind::broadcast) return communicator_.broadcast(fill(BroadcastRequest{}));
  if (r.kind == Kind::reduce) return communicator_.reduce(fill(ReduceRequest{}));
  if (r.kind == Kind::reduce_scatter) return communicator_.reduce_scatter(fill(ReduceScatterRequest{}));
  return communicator_.allgather(fill(AllgatherRequest{}));
}

/// Every way to learn of the end.
void RankCall::wait() {
  switch (draw_.number(0, 3)) {
    case 0:
      while (!work_.test()) std::this_thread::yield();
      return;
    case 1:
      while (!work_.wait(std::chrono::microseconds(draw_.number(1, 500)))) {
      }
      return;
    case 2: {
      std::promise<void> done;
      work_.on_complete([&](const Error*) { done.set_value(); });
      done.get_future().wait();
      break;
    }
    default:
      break;
  }
  work_.wait();
}

std::string RankCall::finish() {
  const auto why = [&](const std::string& what) {
    return what.empty() ? what : fmt::format("rank {}: {}: {}", rank_, request().text(), what);
  };
  try {
    if (work_.valid()) wait();
  } catch (const Error& e) {
    return why(check_error(e));
  }
  if (!refusal_.empty()) return why(check_error({ErrorCode::invalid_argument, refusal_}));
  return why(check_result());
}

/// Only errors that were asked for may come.
std::string RankCall::check_error(const Error& error) const {
  const Request& r = request();
  const std::string_view text = error.what();
  const auto says = [&](std::string_view what) { return text.find(what) != std::string_view::npos; };
  if (r.refusing >= 0 &&
      (says(fmt::format("rank {} refused", r.refusing)) ||
       says(r.kind == Kind::packed ? "packed_capacity" : "not inside a registered buffer")))
    return "";
  // What all ranks refuse alike.
  if (r.algorithm != Algorithm::automatic && says("algorithm")) return "";
  if (r.wire_type > WireType::as_is && says("wire_type")) return "";
  if (r.too_small && says("the packed result has")) return "";
  return fmt::format("failed: {}", text);
}

std::string RankCall::check_result() {
  const Request& r = request();
  if (r.refusing >= 0 && r.chunks[0] > 0 && !r.counts_given)
    return "a request that cannot be was not refused";
  if (!input_.guard_is_whole() || !output_.guard_is_whole()) return "something was written behind the result";
  const std::uint64_t blocks = work_.statistics().union_blocks;
  if (blocks != problem_.union_blocks(rank_))
    return fmt::format("the union has {} blocks, and should have {}", blocks, problem_.union_blocks(rank_));
  if (!in_place_ && !part().bytes.empty() && std::memcmp(in_, part().bytes.data(), part().bytes.size()) != 0)
    return "the input has changed";
  return r.kind == Kind::packed ? check_packed() : check_dense();
}

std::string RankCall::check_dense() {
  const Request& r = request();
  const auto bits = work_.union_bitmap();
  std::uint64_t at = 0, block = 0;
  for (std::size_t c = 0; c < r.chunks.size(); ++c) {
    if (!r.gets(rank_, c)) continue;
    const auto& expected = problem_.results[c].bytes;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      if (out_[at + i] != expected[i])
        return fmt::format("byte {} of chunk {} is {:02x}, and should be {:02x} (element {}, block {})", i, c,
                           static_cast<int>(out_[at + i]), static_cast<int>(expected[i]), i / r.element(),
                           i / r.element() / r.block);
    }
    if (auto wrong = check_union(c, block, bits); !wrong.empty()) return wrong;
    at += expected.size(), block += r.blocks_of(c);
  }
  return "";
}

std::string RankCall::check_union(std::size_t chunk, std::uint64_t first,
                                  std::span<const std::uint64_t> bits) const {
  const auto& blocks = problem_.results[chunk].blocks;
  for (std::uint64_t b = 0; b < blocks.size(); ++b) {
    if (test_bit(bits, first + b) != blocks[b])
      return fmt::format("the union bitmap says {} of block {} of chunk {}",
                         blocks[b] ? "nothing" : "something", b, chunk);
  }
  return "";
}

std::string RankCall::check_packed() {
  const Request& r = request();
  const Result& result = problem_.results[0];
  const std::uint64_t block_bytes = r.block * r.element();
  std::vector<std::int64_t> expected;
  for (std::uint64_t b = 0; b < result.blocks.size(); ++b) {
    if (result.blocks[b]) expected.push_back(static_cast<std::int64_t>(b));
  }
  const bool grown = expected.size() > capacity_;
  Memory& values = grown ? grown_ : output_;
  Memory& indices = grown ? grown_indices_ : packed_indices_;
  if (grown && grown_.size() == 0) return "the output did not grow";
  if (!values.guard_is_whole() || !indices.guard_is_whole()) return "something was written behind the result";
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (indices.size() > 0 && read_index(packed_type_, indices.data(), i) != expected[i])
      return fmt::format("index {} of the result is {}, and should be {}", i,
                         read_index(packed_type_, indices.data(), i), expected[i]);
    const std::uint64_t at = static_cast<std::uint64_t>(expected[i]) * block_bytes;
    const std::uint64_t bytes = std::min<std::uint64_t>(block_bytes, result.bytes.size() - at);
    if (std::memcmp(values.data() + i * block_bytes, result.bytes.data() + at, bytes) != 0)
      return fmt::format("block {} of the packed result is wrong, which is block {}", i, expected[i]);
  }
  const auto found = work_.packed_indices();
  // Now the memory is the rank's again, and the Work knows all the same.
  if (indices.size() > 0) std::memset(indices.data(), 0x7f, indices.size());
  if (draw_.chance(0.5)) {
    if (auto wrong = check_union(0, 0, work_.union_bitmap()); !wrong.empty()) return wrong;
  }
  return std::ranges::equal(found, expected) ? "" : "packed_indices() are others than those of the result";
}

}  // namespace nzcl::stress
