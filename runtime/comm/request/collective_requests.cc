#include "runtime/comm/request/collective_requests.h"

#include <fmt/format.h>

#include <algorithm>

#include "nzcl/error.h"
#include "runtime/base/bitmap.h"
#include "runtime/base/divide.h"
#include "runtime/comm/request/request_checks.h"
#include "runtime/wire/checks.h"

namespace nzcl::comm {
namespace {

using wire::Collective;

/// The elements of each chunk, or of the whole tensor, as far as the caller gave them.
struct Counts {
  std::uint64_t largest = 0;
  std::uint64_t checksum = 0;  // 0: all chunks are equal
};

Counts counts_of(const CollectiveRequest& r) {
  if (!wire::is_chunked(r.collective) || r.counts.empty()) return {.largest = r.count};
  const std::string_view call = wire::name_of(r.collective);
  if (r.counts.size() != static_cast<std::size_t>(r.ranks))
    reject_request(call, fmt::format("{} counts are given for {} ranks", r.counts.size(), r.ranks));
  const auto [least, most] = std::minmax_element(r.counts.begin(), r.counts.end());
  if (*least == *most) return {.largest = *most};
  std::uint64_t sum = 0xcbf29ce484222325;  // FNV-1a over the numbers
  for (const std::uint64_t n : r.counts) sum = (sum ^ n) * 0x100000001b3, sum ^= sum >> 29;
  return {.largest = *most, .checksum = std::max<std::uint64_t>(sum, 1)};
}

/// A range of the caller's memory, in elements, and how many blocks it has.
struct Range {
  std::uint64_t elements = 0, blocks = 0;
};

/// Sizes of the tensor's chunks.
class Chunks {
 public:
  Chunks(const CollectiveRequest& r, const wire::OperationRecord& shape)
      : block_(r.block_elems),
        count_(shape.count),
        chunks_(wire::is_chunked(r.collective) ? r.ranks : 1),
        begins_(chunk_begins_of(r, shape)) {}
  Range one(int chunk) const {
    const auto c = static_cast<std::size_t>(chunks_ == 1 ? 0 : chunk);
    const std::uint64_t n = begins_.empty() ? count_ : begins_[c + 1] - begins_[c];
    return {n, ceil_div(n, block_)};
  }
  Range all() const {
    Range sum;
    for (int c = 0; c < chunks_; ++c) sum.elements += one(c).elements, sum.blocks += one(c).blocks;
    return sum;
  }
  /// Elements before a chunk.
  std::uint64_t begin(int chunk) const {
    return begins_.empty() ? static_cast<std::uint64_t>(chunk) * count_
                           : begins_[static_cast<std::size_t>(chunk)];
  }

 private:
  std::uint64_t block_, count_;
  int chunks_;
  std::vector<std::uint64_t> begins_;
};

/// The part of input or output that is the other one's too if the operation is in place, in elements from its
/// beginning.
std::uint64_t shared_from(const CollectiveRequest& r, const Chunks& chunks, Collective side) {
  return r.collective == side ? chunks.begin(r.rank) : 0;
}

/// Copies the fields that this kind of request has, as they are.
template <typename Request>
CollectiveRequest common_fields(Collective collective, const Request& r, int rank, int ranks) {
  CollectiveRequest c{.collective = collective, .rank = rank, .ranks = ranks};
  if constexpr (requires { r.input; }) {
    c.input = r.input;
    c.output = r.output;
  }
  if constexpr (requires { r.op; }) c.op = r.op;
  if constexpr (requires { r.root; }) c.root = r.root;
  if constexpr (requires { r.counts; }) c.counts = r.counts;
  c.count = r.count;
  c.type = r.type;
  c.block_elems = r.block_elems;
  c.bitmap = r.bitmap;
  c.dense = r.dense;
  c.timeout = r.timeout;
  c.tag = r.tag;
  c.stream = r.stream;
  return c;
}

}  // namespace

CollectiveRequest request_of(const BroadcastRequest& r, int rank, int ranks) {
  CollectiveRequest c = common_fields(Collective::broadcast, r, rank, ranks);
  c.output = r.data;
  if (rank == r.root) {
    c.input = r.data;
  } else {
    c.bitmap = {};
    c.dense = false;
  }
  return c;
}

CollectiveRequest request_of(const ReduceRequest& r, int rank, int ranks) {
  CollectiveRequest c = common_fields(Collective::reduce, r, rank, ranks);
  if (rank != r.root) c.output = nullptr;
  return c;
}

CollectiveRequest request_of(const ReduceScatterRequest& r, int rank, int ranks) {
  return common_fields(Collective::reduce_scatter, r, rank, ranks);
}

CollectiveRequest request_of(const AllgatherRequest& r, int rank, int ranks) {
  return common_fields(Collective::allgather, r, rank, ranks);
}

std::vector<std::uint64_t> chunk_begins_of(const CollectiveRequest& r, const wire::OperationRecord& shape) {
  if (shape.checksum == 0) return {};
  std::vector<std::uint64_t> begins{0};
  for (const std::uint64_t n : r.counts) begins.push_back(begins.back() + n);
  return begins;
}

wire::OperationRecord shape_of(const CollectiveRequest& r, WireType) {
  const std::string_view call = wire::name_of(r.collective);
  const Counts counts = counts_of(r);
  wire::OperationRecord shape = check_shape(call, counts.largest, r.type, r.op, r.block_elems, r.tag);
  const auto ranks = static_cast<std::uint64_t>(wire::is_chunked(r.collective) ? wire::kMaxMembers : 1);
  if (shape.count > wire::kMostBytes / ranks / element_bytes(r.type))
    reject_request(call, fmt::format("chunks of {} elements are larger than memory can be", shape.count));
  if (wire::has_root(r.collective) && (r.root < 0 || r.root >= r.ranks))
    reject_request(call, fmt::format("root {} is no rank; there are {}", r.root, r.ranks));
  shape.collective = r.collective;
  shape.root_or_density =
      wire::has_root(r.collective) ? static_cast<std::uint16_t>(r.root) : std::uint16_t{0};
  shape.checksum = counts.checksum;
  shape.chunk_count = wire::is_chunked(r.collective) ? shape.count : 0;  // see Operation::record_of()
  return shape;
}

void prepare(const CollectiveRequest& r, const Registrations& registrations, Prepared& p) {
  const wire::OperationRecord& shape = p.record;
  const std::string_view call = wire::name_of(r.collective);
  const std::size_t element = element_bytes(r.type);
  const bool scatters = r.collective == Collective::reduce_scatter,
             gathers = r.collective == Collective::allgather;
  const bool is_root = r.rank == r.root;
  const bool reads = r.collective != Collective::broadcast || is_root;
  const bool writes =
      wire::receivers(r.collective, shape.root(), static_cast<std::uint32_t>(r.rank), r.ranks).has(r.rank);
  const Chunks chunks(r, shape);
  const Range in = scatters ? chunks.all() : chunks.one(r.rank);
  const Range out = gathers ? chunks.all() : chunks.one(r.rank);

  p.timeout = check_timeout(call, r.timeout);
  check_bitmap(call, r.bitmap.size(), in.blocks, r.dense);
  p.known = !reads || in.elements == 0 ? Prepared::Input::none : Prepared::Input::scan;
  // Which chunks are there: all, this rank's own, or the whole tensor, which is number 0 then.
  const auto chunks_of = [&](bool all) -> GpuTensors::Chunks {
    if (all) return {.count = static_cast<std::uint32_t>(r.ranks)};
    return {.first = scatters || gathers ? static_cast<std::uint32_t>(r.rank) : 0, .count = 1};
  };
  if (reads && in.elements > 0) {
    const std::uint64_t bytes = in.elements * element;
    auto memory = covered_anywhere(call, registrations, r.input, bytes, element,
                                   r.collective == Collective::broadcast ? "data" : "input");
    take_input(r.input, bytes, std::move(memory), chunks_of(scatters), p);
    if (r.dense) p.known = Prepared::Input::all;
    if (!r.bitmap.empty()) {
      p.known = Prepared::Input::bitmap;
      p.bitmap = copy_bitmap(r.bitmap, in.blocks);
    }
  }
  if (writes && out.elements > 0) {
    const std::uint64_t bytes = out.elements * element;
    auto memory = covered_anywhere(call, registrations, r.output, bytes, element,
                                   r.collective == Collective::broadcast ? "data" : "output");
    take_output(r.output, bytes, std::move(memory), chunks_of(gathers), p);
    p.output.absent_stay = r.output_has_zeros;
  }
  // A rank whose own chunk is empty may still give the stream that its memory would have.
  const bool has_empty = (reads && in.elements == 0) || (writes && out.elements == 0);
  take_stream(call, has_empty && !p.gpu ? nullptr : r.stream, p);
  if (overlap(p.input_bytes, p.output_bytes)) {
    const std::byte* input_part =
        p.input_bytes.data() + shared_from(r, chunks, Collective::reduce_scatter) * element;
    const std::byte* output_part =
        p.output_bytes.data() + shared_from(r, chunks, Collective::allgather) * element;
    if (input_part != output_part)
      reject_request(call, "input and output overlap without being the same where they belong together");
  }
}

}  // namespace nzcl::comm
