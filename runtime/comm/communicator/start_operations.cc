// How a communicator starts operations, and takes the places of those that it refuses.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <new>
#include <string_view>
#include <utility>
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

/// Whether it is an allreduce whose blocks and sums are moved as they are, and once: without tiles' codes,
/// checksums, a packed result, or a graph, which repeats it with other owners.
bool is_pushed_whole(const Prepared& p) {
  const wire::OperationRecord& record = p.record;
  return record.algorithm == wire::Algorithm::push && record.collective == wire::Collective::allreduce &&
         record.packed_result == 0 && record.value_rule == wire::ValueRule::as_is && record.checksum == 0 &&
         !p.on_gpu.by_graph;
}

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

StagedWork::Exchanged exchanged(const Prepared& p) {
  return p.record.algorithm == wire::Algorithm::hierarchy ? StagedWork::Exchanged::by_others
                                                          : StagedWork::Exchanged::by_operation;
}

}  // namespace

// --- Requests

bool CommunicatorCore::takes(const CompressedRequest& request) const {
  if (introduction_.wing || members().workers == 1) return false;
  wire::OperationRecord record = shape_of(request, WireType::as_is);
  record.algorithm = engine::choose_algorithm(config_, record, request.algorithm);
  if (!engine::layout_of(config_, 0, record).tiled()) return false;
  if (config_.algorithm != Algorithm::hierarchy) return true;
  // In two levels, what the ranks of a host send is decoded before it is summed, so it travels as a list.
  record.value_rule = wire::ValueRule::as_is;
  return engine::choose_algorithm(config_, record, request.algorithm) != wire::Algorithm::hierarchy;
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
    const auto* const repeatable = std::get_if<const AllreduceRequest*>(&request);
    std::unique_lock lock(operations_.mutex());
    if (repeatable != nullptr && recent_.recall(**repeatable, p)) {
      keep(request, p);
    } else {
      lock.unlock();
      refusal = try_to_prepare(request, p);
      if (refusal && is_captured(p)) throw Error(*refusal);  // nothing begins on the other ranks either
      if (!refusal && p.on_gpu.by_graph) return capture(p);
      if (!refusal) keep(request, p);
      lock.lock();
      if (repeatable != nullptr && !refusal) recent_.remember(**repeatable, session_->registrations(), p);
    }
    if (checksum != 0) p.record.checksum = checksum;
    return launch(lock, p, std::move(refusal));
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
    std::unique_lock lock(operations_.mutex());
    launch(lock, nothing, refusal);
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

void CommunicatorCore::require_unwritten(std::span<const std::byte> input, bool may_be_gpu) {
  if (!may_be_gpu) refuse_gpu_memory("allreduce", session_->registrations(), input, "input");
  const std::scoped_lock lock(operations_.mutex());
  operations_.check_conflicts("allreduce", input, {});
}

/// Does prepare_request(), and returns why the request is refused if it is.
std::optional<Error> CommunicatorCore::try_to_prepare(const Request& request, Prepared& p) {
  try {
    prepare_request(request, p);
    return std::nullopt;
  } catch (const Error& e) {
    return e;
  } catch (const std::bad_alloc&) {
    return Error(ErrorCode::system, fmt::format("{}: out of memory", wire::name_of(p.record.collective)));
  }
}

/// Checks the request, and sets `p` to what it comes to. If it throws, `p.record` is all that counts.
void CommunicatorCore::prepare_request(const Request& request, Prepared& p) {
  p.record = shape_of(&kUnknownRequest, WireType::as_is);  // what counts if the next line throws
  p.record = shape_of(request, wire_type_);
  p.chunk_begins = chunk_begins_of(request, p.record);
  if (p.record.value_rule != wire::ValueRule::as_is) check_wire_type(asked_wire_type(request), p.record);
  p.record.algorithm = algorithms_.choose(p.record, asked_algorithm(request));
  check_algorithm(p.record);
  prepare(request, session_->registrations(), p);
  if (p.input.sparse) refuse_sparse();
  if (p.gpu) stage(p, asked_algorithm(request));
}

/// Gives a request with memory on a GPU the host memory that stands for it.
void CommunicatorCore::stage(Prepared& p, Algorithm asked) {
  const auto call = wire::name_of(p.record.collective);
  if (introduction_.wing)
    throw Error(
        ErrorCode::unsupported,
        fmt::format("{}: the switch exchange does not take memory of a GPU; set algorithm to another one",
                    call));
  if ((p.gpu_step || p.stream_on_gpu) && is_captured(p))
    throw Error(
        ErrorCode::unsupported,
        fmt::format("{}: the stream is captured into a graph, which can have calls with whole tensors "
                    "only: no sparse streams, and no compressors",
                    call));
  if (p.gpu_step) return stage_compressed(p);
  if (comes_in_tiles(p)) {
    p.stream_on_gpu.emplace();
    p.stream_on_gpu->tensor = p.on_gpu.input;
    p.stream_on_gpu->output = p.on_gpu.output;
    p.stream_on_gpu->stream = p.on_gpu.stream;
  }
  if (p.stream_on_gpu) return stage_stream(p);
  p.on_gpu.check = options().check != 0;
  p.on_gpu.by_graph = is_captured(p);
  p.on_gpu.gpus_may_sum = may_sum_on_gpus(p, asked);
  set_far(p);
  p.on_gpu.type = static_cast<gpu::SumType>(p.record.type);
  p.on_gpu.op = static_cast<gpu::SumOp>(p.record.op);
  auto staged = staging_.make(p.gpu, p.on_gpu, layout_for_gpu(p), exchanged(p));
  if (staged->has_input()) {
    p.input = staged->input();
    p.regions[0] = staged->region();
  }
  if (staged->has_output()) set_staged_output(*staged, p);
  p.staged = std::move(staged);
}

/// Whether the GPU packs the tensor's tiles: it finds out itself what is in them, each operation has memory
/// of its own for them, and it exchanges them.
bool CommunicatorCore::comes_in_tiles(Prepared& p) const {
  return !p.stream_on_gpu && p.on_gpu.input != nullptr && p.known == Prepared::Input::scan &&
         exchanged(p) == StagedWork::Exchanged::by_operation && StagedTiles::can_pack(layout_for_gpu(p)) &&
         !is_captured(p);
}

/// Whether the ranks' GPUs may sum it, where all of them can: whoever names an algorithm gets that.
bool CommunicatorCore::may_sum_on_gpus(const Prepared& p, Algorithm asked) const {
  return board_ && asked == Algorithm::automatic && is_pushed_whole(p);
}

/// Whether a NIC may use the GPU's memory. What the host has to read or write goes through its own.
void CommunicatorCore::set_far(Prepared& p) const {
  if (!options().tune.gpu_direct || members().count() == 1 || !is_pushed_whole(p)) return;
  if (config_.message_segments() < 2)
    throw Error(
        ErrorCode::unsupported,
        "NZCL_TUNE=gpu_direct=on: a message needs three entries of a gather list; leave max_segments as "
        "it is");
  p.on_gpu.may_be_far = true;
  if (!members().is_aggregator(members().self)) return;
  p.on_gpu.first_own = static_cast<std::uint32_t>(members().aggregator_of(members().self) * config_.lanes);
  p.on_gpu.own = static_cast<std::uint32_t>(config_.lanes);
}

/// Whether the request's stream is captured into a graph. That of a GPU which cannot tell is not.
bool CommunicatorCore::is_captured(const Prepared& p) noexcept {
  try {
    return p.gpu && p.gpu->captures(p.stream_on_gpu ? p.stream_on_gpu->stream : p.on_gpu.stream);
  } catch (const Error&) {
    return false;
  }
}

/// An operation whose tensor others exchange has no slices of it itself, but the GPU needs some.
engine::SliceLayout CommunicatorCore::layout_for_gpu(Prepared& p) const {
  if (p.record.algorithm != wire::Algorithm::hierarchy) {
    if (!p.layout) p.layout = layout_of(p, 0);
    return *p.layout;
  }
  wire::OperationRecord flat = p.record;
  flat.algorithm = wire::Algorithm::push;
  return engine::layout_of(config_, 0, flat);
}

/// The same for a sparse stream, and for what comes in tiles.
void CommunicatorCore::stage_stream(Prepared& p) {
  auto staged = staging_.make(p.gpu, *p.stream_on_gpu, layout_for_gpu(p), exchanged(p));
  if (const StagedList* const list = staged->list()) {
    p.input = list->input();
    p.regions[0] = list->region();
  }
  if (const auto& tiles = staged->tiles()) {
    p.input = tiles->input();
    p.regions[0] = tiles->shared_region();
    p.known = Prepared::Input::staged_tiles;
    p.source = tiles;
  }
  if (const StagedOperation* const dense = staged->dense()) set_staged_output(*dense, p);
  if (const StagedPacked* const packed = staged->packed()) p.output = packed->output();
  p.staged = std::move(staged);
}

/// The same for what a compressor on a GPU selects.
void CommunicatorCore::stage_compressed(Prepared& p) {
  const bool in_tiles = p.known == Prepared::Input::source;
  auto staged =
      staging_.make(p.gpu_step, p.on_gpu.output, p.on_gpu.stream, in_tiles, layout_for_gpu(p), exchanged(p));
  if (!in_tiles) {
    p.input = staged->input();
    p.regions[0] = staged->region();
  }
  if (const StagedOperation* const dense = staged->dense()) set_staged_output(*dense, p);
  p.staged = std::move(staged);
}

void CommunicatorCore::set_staged_output(const StagedOperation& staged, Prepared& p) {
  p.output = staged.output();
  set_output_region(staged.region(), p);
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
/// operation that takes its place has been started. `lock` is that of the operations.
std::shared_ptr<Operation> CommunicatorCore::launch(std::unique_lock<std::mutex>& lock, Prepared& p,
                                                    std::optional<Error> refusal) {
  wait_for_room(lock);
  take_call_to_come();
  const auto forgotten = operations_.forget_finished();  // destroyed at the end
  std::unique_ptr<const engine::InputCheck> check;
  if (!refusal) {
    try {
      operations_.check_conflicts(wire::name_of(p.record.collective), p.input_bytes, p.output_bytes);
      check = check_input(p);
      if (p.staged) p.staged->begin(operations_.next_epoch(), p.bitmap, p.known == Prepared::Input::all);
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
  // A list that is still to come from a GPU.
  const auto coming = p.known == Prepared::Input::staged_list ? p.staged : nullptr;
  std::shared_ptr<TwoLevelSum> levels;
  if (p.record.algorithm == wire::Algorithm::hierarchy) levels = add_to_hierarchy(p, operation, refusal);
  operations_.add(operation, p.input_bytes, p.output_bytes, std::move(p.kept));
  if (p.staged) p.staged->called(operation->epoch);
  if (board_) board_->called(operation->epoch);
  if (!refusal) count(operations_started_, 1);
  if (p.known == Prepared::Input::scan || p.known == Prepared::Input::staged_tiles)
    count(blocks_scanned_, operation->contributed_blocks());
  if (p.known == Prepared::Input::scan && !operation->layout.express() && !operation->layout.tiled() &&
      !operation->input_is_staged())
    threads_.scan_pool().submit(operation);
  if (p.known == Prepared::Input::source && !p.gpu_step) threads_.scan_pool().submit(operation);
  lanes_.submit(*operation);
  if (operation->staged) {
    StagingThread::Begin begin;
    if (levels)
      begin = [sum = std::exchange(levels, nullptr), coming](const std::optional<Failure>& no_input) {
        if (no_input) {
          sum->refuse(*no_input);
        } else if (coming) {
          sum->give_list(*coming);
        }
        sum->begin();
      };
    staging_.watch(std::move(p.staged), operation, std::move(begin));
  }
  lock.unlock();
  if (levels) levels->begin();
  lanes_.drive();  // sends at once what can be sent already
  if (refusal) throw Error(*refusal);
  control_->has_begun(operation->epoch + 1);
  return operation;
}

/// Throws if the operation whose place the call takes has failed already, on the communicator that this one
/// replaces.
void CommunicatorCore::take_call_to_come() {
  if (calls_to_come_.empty()) return;
  const auto failure = std::move(calls_to_come_.front());
  calls_to_come_.pop_front();
  if (failure) throw Error(failure->code, failure->text);
}

/// Takes what the operation is to sum, so that its own lanes only find out whether the ranks agree.
std::shared_ptr<TwoLevelSum> CommunicatorCore::add_to_hierarchy(Prepared& p,
                                                                const std::shared_ptr<Operation>& operation,
                                                                const std::optional<Error>& refusal) {
  TwoLevelRequest request{.operation = operation, .record = p.record, .timeout = operation->timeout};
  if (refusal) {
    request.refusal = Failure{refusal->code(), refusal->what()};
  } else {
    const auto on_host = [](const std::byte* base, std::span<const std::byte> bytes) {
      return std::span(base, bytes.size());
    };
    for (const auto range : {on_host(p.input.base, p.input_bytes), on_host(p.output.base, p.output_bytes)}) {
      if (auto handle = session_->registrations().handle_of(range).lock())
        request.handles.push_back(std::move(handle));
    }
    request.input = p.input.base;
    request.output = p.output;
    request.dense = p.known == Prepared::Input::all;
    request.bitmap = std::move(p.bitmap);
    if (p.output.packed) {
      request.set_indices(p.caller_indices, p.sum_duplicates);
    } else if (p.input.sparse) {
      if (p.known != Prepared::Input::staged_list) request.sparse = std::move(p.input);
      request.input = p.output.base;
    }
  }
  p.known = Prepared::Input::none;
  auto sum = make_two_level_sum(*hierarchy_, std::move(request));
  hierarchy_->add(*sum);
  return sum;
}

std::unique_ptr<const engine::InputCheck> CommunicatorCore::check_input(const Prepared& p) const {
  if (options().check == 0 || p.input_bytes.empty() || p.on_gpu.input != nullptr ||
      p.known == Prepared::Input::staged_list || p.gpu_step)
    return nullptr;
  engine::InputBlocks input = input_blocks_of(p);
  if (p.known == Prepared::Input::bitmap && !p.input.sparse) {
    if (const auto block = engine::first_hidden_block(input, p.bitmap))
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{}: {}", wire::name_of(p.record.collective), engine::hidden_text(*block)));
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

/// The layout refers to the chunks of `p`.
engine::SliceLayout CommunicatorCore::layout_of(const Prepared& p, std::uint64_t epoch) const {
  return engine::layout_of(config_, epoch, p.record,
                           p.chunk_begins.empty() ? nullptr : p.chunk_begins.data());
}

std::shared_ptr<Operation> CommunicatorCore::make_operation(Prepared& p) {
  const std::uint64_t epoch = operations_.next_epoch();
  const engine::SliceLayout layout = p.layout ? p.layout->at_epoch(epoch) : layout_of(p, epoch);
  const bool levels = p.record.algorithm == wire::Algorithm::hierarchy;
  if (p.known == Prepared::Input::indices && !(levels && p.output.packed)) cut_indices(p, layout);
  p.output.spare = spare_memory_.get();
  // Of a hierarchy, other operations read the input, and write what is packed.
  engine::InputView input =
      levels ? engine::InputView{.base = p.input.base, .region = p.input.region} : std::move(p.input);
  engine::OutputView output =
      levels ? engine::OutputView{.base = p.output.base, .region = p.output.region} : std::move(p.output);
  auto operation = std::make_shared<Operation>(layout, p.record, std::move(input), std::move(output),
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
  operation->staged = p.staged;
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
    case Prepared::Input::staged_list:  // the staging gives it to the operation
      break;
    case Prepared::Input::source:
    case Prepared::Input::staged_tiles:
      operation->set_input_source(std::move(p.source));
      operation->set_result_coder(std::move(p.result_coder));
      break;
  }
  if (p.staged) operation->await_staging();
  return operation;
}

}  // namespace nzcl::comm
