// How a communicator starts operations, and takes the places of those that it refuses.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <new>
#include <string_view>
#include <variant>

#include "nzcl/duration.h"
#include "nzcl/error.h"
#include "runtime/base/plain_floats.h"
#include "runtime/comm/communicator/communicator_core.h"
#include "runtime/comm/request/request_checks.h"
#include "runtime/plan/algorithm.h"
#include "runtime/plan/slice_layout.h"
#include "runtime/trace/trace.h"

namespace nzcl::comm {

using engine::Operation;

namespace {

/// Adds to a counter that is written only under the lock of the operations.
void count(std::atomic<std::uint64_t>& counter, std::uint64_t n) {
  counter.store(counter.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
}

/// Only a reduce-scatter has an input of several chunks.
engine::InputBlocks input_blocks_of(const Prepared& p) {
  const std::uint64_t element = element_bytes(static_cast<DataType>(p.record.type));
  engine::InputBlocks input{.chunks = {}, .block_bytes = p.record.block_elems * element};
  if (p.record.collective != wire::Collective::reduce_scatter) {
    input.chunks.push_back(p.input_bytes);
    return input;
  }
  auto rest = p.input_bytes;
  for (std::size_t c = 0; !rest.empty(); ++c) {
    const std::uint64_t elements =
        p.chunk_begins.empty() ? p.record.count : p.chunk_begins[c + 1] - p.chunk_begins[c];
    input.chunks.push_back(rest.first(elements * element));
    rest = rest.subspan(elements * element);
  }
  return input;
}

}  // namespace

// --- Requests

bool CommunicatorCore::takes(const CompressedRequest& request) const {
  if (introduction_.wing || members().workers == 1) return false;
  wire::OperationRecord record = shape_of(request, WireType::as_is);
  record.algorithm = engine::choose_algorithm(config_, record, request.algorithm);
  return engine::layout_of(config_, 0, record).tiled();
}

const char* CommunicatorCore::why_no_coded_results() const {
  if (introduction_.wing) return introduction_.wing->why_no_coded_results();
  if (members().dedicated > 0)
    return "dedicated aggregators cannot: they have no states to keep what coding loses; set aggregators to "
           "0";
  return nullptr;
}

std::shared_ptr<Operation> CommunicatorCore::start(const Request& request, std::uint64_t checksum) {
  require_own_process("starting an operation");
  const PlainFloats floats;  // for predictions, and for the sums of a stream's duplicates
  try {
    Prepared p;
    std::optional<Error> refusal;
    try {
      prepare_request(request, p);
    } catch (const Error& e) {
      refusal = e;
    } catch (const std::bad_alloc&) {
      refusal =
          Error(ErrorCode::system, fmt::format("{}: out of memory", wire::name_of(p.record.collective)));
    }
    if (checksum != 0) p.record.checksum = checksum;
    return launch(p, std::move(refusal));
  } catch (const Error&) {
    throw;
  } catch (const std::exception& e) {  // memory ran out, so the place in the order was not taken
    control_->abort(
        {ErrorCode::system, fmt::format("{} could not start an operation: {}", name(), e.what())});
    throw;
  }
}

void CommunicatorCore::refuse(const Request& request, const Error& refusal) {
  require_own_process("allreduce");
  const PlainFloats floats;  // predictions must come out alike on all ranks
  Prepared nothing;
  nothing.record = shape_of(request, WireType::as_is);
  nothing.record.algorithm = engine::choose_algorithm(config_, nothing.record, asked_algorithm(request));
  nothing.chunk_begins = chunk_begins_of(request, nothing.record);
  try {
    launch(nothing, refusal);
  } catch (const Error& e) {
    if (std::string_view(e.what()) != refusal.what()) throw;
  }
}

void CommunicatorCore::check(const Request& request) {
  require_own_process("allreduce");
  const PlainFloats floats;
  Prepared p;
  prepare_request(request, p);
  const std::unique_lock lock(operations_.mutex());
  if (operations_.closed()) throw Error(ErrorCode::invalid_usage, "allreduce: the communicator is closed");
  throw_if_failed();
  operations_.check_conflicts("allreduce", p.input_bytes, p.output_bytes);
}

void CommunicatorCore::require_unwritten(std::span<const std::byte> input) {
  refuse_gpu_memory("allreduce", session_->registrations(), input, "input");
  const std::scoped_lock lock(operations_.mutex());
  operations_.check_conflicts("allreduce", input, {});
}

/// Checks the request, and sets `p` to what it comes to. If it throws, `p.record` is all that counts.
void CommunicatorCore::prepare_request(const Request& request, Prepared& p) {
  const auto* const repeatable = std::get_if<const AllreduceRequest*>(&request);
  if (repeatable != nullptr && recent_.recall(**repeatable, p)) return;
  p.record = shape_of(&kUnknownRequest, WireType::as_is);  // what counts if the next line throws
  p.record = shape_of(request, wire_type_);
  p.chunk_begins = chunk_begins_of(request, p.record);
  if (p.record.value_rule != wire::ValueRule::as_is) check_wire_type(asked_wire_type(request), p.record);
  p.record.algorithm = algorithms_.choose(p.record, asked_algorithm(request));
  check_algorithm(p.record);
  prepare(request, session_->registrations(), p);
  if (p.input.sparse) refuse_sparse();
  if (repeatable != nullptr) recent_.remember(**repeatable, session_->registrations(), p);
  if (p.gpu) stage(p);
}

/// Gives a request whose memory is on a GPU the host memory that stands for it.
void CommunicatorCore::stage(Prepared& p) {
  if (introduction_.wing)
    throw Error(ErrorCode::unsupported,
                "allreduce: the switch exchange does not take memory of a GPU; set algorithm to another one");
  if (p.record.algorithm == wire::Algorithm::hierarchy)
    throw Error(ErrorCode::unsupported,
                "allreduce: a hierarchy does not take memory of a GPU; set the request's algorithm to push");
  if (!p.layout) p.layout = engine::layout_of(config_, 0, p.record);
  p.staged = staging_.make(p.gpu, p.on_gpu, *p.layout);
  p.input = p.staged->input();
  p.output = p.staged->output();
  p.regions = {p.staged->region(), p.staged->region()};
  const auto& region = p.regions[1];
  const auto remote =
      region->remote().offset(static_cast<std::uint64_t>(p.output.base - region->bytes().data()));
  p.record.output_address = remote.address;
  p.record.output_key = remote.key;
}

/// Takes back that values are to travel in a narrower type if the tensor's blocks are too large for it.
/// Refuses the request if it was the caller who asked.
void CommunicatorCore::check_wire_type(WireType asked, wire::OperationRecord& record) const {
  const auto fits = [this](const wire::OperationRecord& r) {
    const engine::SliceLayout layout = engine::layout_of(config_, 0, r);
    return layout.tiled() || layout.express();
  };
  if (members().workers == 1 || fits(record)) return;
  if (asked == WireType::by_option) {
    record.value_rule = wire::ValueRule::as_is;
    return;
  }
  wire::OperationRecord smaller = record;
  smaller.block_elems = std::min<std::uint64_t>(record.block_elems, wire::kMostTileElements / 64);
  while (smaller.block_elems > 1 && !fits(smaller)) --smaller.block_elems;
  throw Error(
      ErrorCode::invalid_argument,
      fmt::format("allreduce: block_elems is {}; with a wire_type, and slots of {} bytes, blocks may have at "
                  "most {} elements",
                  record.block_elems, config_.channel(wire::Priority::bulk).slot_bytes, smaller.block_elems));
}

/// Refuses what the communicator's wing cannot exchange, if it has one. All ranks do so alike.
void CommunicatorCore::check_algorithm(const wire::OperationRecord& record) const {
  if (!introduction_.wing) return;
  if (const auto why = introduction_.wing->why_not(record)) throw Error(ErrorCode::unsupported, *why);
}

void CommunicatorCore::refuse_sparse() const {
  if (introduction_.wing) throw Error(ErrorCode::unsupported, introduction_.wing->why_no_sparse_input());
}

// --- Starting

/// Throws `refusal`, or what the operations in flight and the input itself say against the request, after the
/// operation that takes its place has been started.
std::shared_ptr<Operation> CommunicatorCore::launch(Prepared& p, std::optional<Error> refusal) {
  std::unique_lock lock(operations_.mutex());
  wait_for_room(lock);
  std::unique_ptr<const engine::InputCheck> check;
  if (!refusal) {
    try {
      operations_.check_conflicts(wire::name_of(p.record.collective), p.input_bytes, p.output_bytes);
      check = check_input(p);
      if (p.staged) p.staged->begin(p.bitmap, p.known == Prepared::Input::all);
    } catch (const Error& e) {
      refusal = e;
    }
  }
  if (refusal) {
    auto chunk_begins = std::move(p.chunk_begins);  // without them it would have other slices
    p = refused(p.record, members().self, *refusal);
    if (p.record.checksum != 0) p.chunk_begins = std::move(chunk_begins);
  }
  auto operation = make_or_refuse(p, refusal);
  operation->input_check = std::move(check);
  std::shared_ptr<TwoLevelSum> levels;
  if (p.record.algorithm == wire::Algorithm::hierarchy) levels = add_to_hierarchy(p, operation, refusal);
  operations_.add(operation, p.input_bytes, p.output_bytes);
  if (!refusal) count(operations_started_, 1);
  if (p.known == Prepared::Input::scan) {
    count(blocks_scanned_, operation->contributed_blocks());
    if (!operation->layout.express() && !operation->layout.tiled() && !operation->staged)
      threads_.scan_pool().submit(operation);
  }
  if (p.known == Prepared::Input::source) threads_.scan_pool().submit(operation);
  lanes_.submit(*operation);
  if (operation->staged) staging_.watch(std::move(p.staged), operation);
  lock.unlock();
  if (levels) levels->begin();
  lanes_.drive();  // sends at once what can be sent already
  if (refusal) throw Error(*refusal);
  control_->has_begun(operation->epoch + 1);
  return operation;
}

/// Takes what the operation is to sum, so that its own lanes only find out whether the ranks agree.
std::shared_ptr<TwoLevelSum> CommunicatorCore::add_to_hierarchy(Prepared& p,
                                                                const std::shared_ptr<Operation>& operation,
                                                                const std::optional<Error>& refusal) {
  TwoLevelRequest request{.operation = operation, .record = p.record, .timeout = operation->timeout};
  if (refusal) {
    request.refusal = Failure{refusal->code(), refusal->what()};
  } else {
    for (const auto range : {p.input_bytes, p.output_bytes}) {
      if (auto handle = session_->registrations().handle_of(range).lock())
        request.handles.push_back(std::move(handle));
    }
    request.input = p.input.base;
    request.output = p.output;
    request.dense = p.known == Prepared::Input::all;
    request.bitmap = std::move(p.bitmap);
    if (p.output.packed) {
      const auto* const indices = static_cast<const std::byte*>(p.caller_indices.data());
      request.index_count = p.caller_indices.size();
      request.index_type = p.caller_indices.type();
      const std::size_t index_bytes = request.index_type == IndexType::int64 ? 8 : 4;
      request.indices.assign(indices, indices + request.index_count * index_bytes);
      request.sum_duplicates = p.sum_duplicates;
    } else if (p.input.sparse) {
      request.sparse = std::move(p.input);
      request.input = p.output.base;
    }
  }
  p.known = Prepared::Input::none;
  auto sum = make_two_level_sum(*hierarchy_, std::move(request));
  hierarchy_->add(*sum);
  return sum;
}

std::unique_ptr<const engine::InputCheck> CommunicatorCore::check_input(const Prepared& p) const {
  if (options().check == 0 || p.input_bytes.empty() || p.gpu) return nullptr;
  engine::InputBlocks input = input_blocks_of(p);
  if (p.known == Prepared::Input::bitmap && !p.input.sparse) {
    if (const auto block = engine::first_hidden_block(input, p.bitmap)) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{}: block {} of the input is not all zero bytes, and its bit in the "
                              "bitmap is not set; -0.0 is no zero here",
                              wire::name_of(p.record.collective), *block));
    }
  }
  return std::make_unique<const engine::InputCheck>(std::move(input));
}

/// Waits until fewer than kMaxOperations are in flight. It unlocks the lock while it waits.
void CommunicatorCore::wait_for_room(std::unique_lock<std::mutex>& lock) {
  while (true) {
    if (operations_.closed()) throw Error(ErrorCode::invalid_usage, "the communicator is closed");
    throw_if_failed();
    const auto oldest = operations_.blocker();
    if (!oldest) return;
    lock.unlock();
    wait(*oldest, std::nullopt);
    lock.lock();
  }
}

/// Makes the operation. If there is no memory for what it has to keep of each block or slice, refuses it. It
/// then takes the place of a request that does not say what tensor it is about, because its own would take
/// the same memory.
std::shared_ptr<Operation> CommunicatorCore::make_or_refuse(Prepared& p, std::optional<Error>& refusal) {
  try {
    return make_operation(p);
  } catch (const std::bad_alloc&) {
    refusal = Error(ErrorCode::system,
                    fmt::format("{}: there is no memory to keep track of {} elements in blocks of {}",
                                wire::name_of(p.record.collective), p.record.count, p.record.block_elems));
  }
  p = refused(shape_of(&kUnknownRequest, WireType::as_is), members().self, *refusal);
  return make_operation(p);
}

std::shared_ptr<Operation> CommunicatorCore::make_operation(Prepared& p) {
  const std::uint64_t epoch = operations_.next_epoch();
  const engine::SliceLayout layout =
      p.layout ? p.layout->at_epoch(epoch)
               : engine::layout_of(config_, epoch, p.record,
                                   p.chunk_begins.empty() ? nullptr : p.chunk_begins.data());
  const bool levels = p.record.algorithm == wire::Algorithm::hierarchy;
  if (p.known == Prepared::Input::indices && !(levels && p.output.packed)) cut_indices(p, layout);
  p.output.spare = spare_memory_;
  // Of a hierarchy, other operations read the input, and write what is packed.
  engine::InputView input =
      levels ? engine::InputView{.base = p.input.base, .region = p.input.region} : std::move(p.input);
  const engine::OutputView output =
      levels ? engine::OutputView{.base = p.output.base, .region = p.output.region} : p.output;
  auto operation = std::make_shared<Operation>(layout, p.record, std::move(input), output,
                                               static_cast<int>(lanes_.size()));
  operation->chunk_begins = std::move(p.chunk_begins);  // they stay where `layout` refers to them
  operation->set_rank(members().self, members().workers);
  operation->bell = &notifier_.bell();
  operation->ring_lanes(&lanes_, static_cast<int>(lanes_.size()));
  operation->epoch = epoch;
  operation->begun_ns = trace::now();
  operation->scan_streams = scan_streams_;
  operation->timeout = p.timeout.count() != 0
                           ? p.timeout
                           : saturated_nanoseconds(std::chrono::duration<double>(options().timeout_s));
  operation->table_index = operations_.next_index();
  operation->regions = std::move(p.regions);
  operation->refusal = std::move(p.refusal);
  operation->own_values = std::move(p.own_values);
  if (levels) {
    operation->set_rest();
    return operation;
  }
  switch (p.known) {
    case Prepared::Input::scan:
      break;
    case Prepared::Input::all:
      operation->set_all_input();
      break;
    case Prepared::Input::bitmap:
      operation->set_input_bitmap(p.bitmap);
      break;
    case Prepared::Input::indices:
      operation->set_input_stream(std::move(p.stream));
      break;
    case Prepared::Input::none:
      operation->set_no_input();
      break;
    case Prepared::Input::source:
      operation->set_input_source(std::move(p.source));
      operation->set_result_coder(std::move(p.result_coder));
      break;
  }
  operation->staged = p.staged;
  if (p.staged) operation->await_staging();
  return operation;
}

}  // namespace nzcl::comm
