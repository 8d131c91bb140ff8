#include "runtime/comm/communicator/captured_call.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "runtime/comm/communicator/communicator_core.h"

namespace nzcl::comm {

using engine::Operation;

namespace {

void keep_until_the_process_ends(std::shared_ptr<CapturedCall> call) {
  static auto* const mutex = new std::mutex;
  static auto* const kept = new std::vector<std::shared_ptr<CapturedCall>>;
  const std::scoped_lock lock(*mutex);
  kept->push_back(std::move(call));
}

}  // namespace

std::shared_ptr<CapturedCall> CapturedCall::make(CommunicatorCore& core, Prepared prepared) {
  const std::shared_ptr<CapturedCall> call(new CapturedCall(core, std::move(prepared)));
  keep_until_the_process_ends(call);  // before the graph has its address
  call->staged().capture(call->prepared_.bitmap, call->prepared_.known == Prepared::Input::all, &begin,
                         call.get());
  return call;
}

void CapturedCall::detach() {
  const std::scoped_lock lock(mutex_);
  core_ = nullptr;
  last_.reset();
}

/// Of a whole tensor, or chunks of one, without what only other kinds of requests have.
Prepared CapturedCall::request() const {
  Prepared p;
  p.record = prepared_.record;
  p.layout = prepared_.layout;
  p.chunk_begins = prepared_.chunk_begins;
  p.input = {.base = prepared_.input.base,
             .region = prepared_.input.region,
             .packed_slices = prepared_.input.packed_slices};
  p.output = prepared_.output;
  p.timeout = prepared_.timeout;
  p.known = prepared_.known;
  p.bitmap = prepared_.bitmap;
  p.input_bytes = prepared_.input_bytes;
  p.output_bytes = prepared_.output_bytes;
  p.regions = prepared_.regions;
  p.gpu = prepared_.gpu;
  p.gpu_argument = prepared_.gpu_argument;
  p.on_gpu = prepared_.on_gpu;
  p.staged = prepared_.staged;
  return p;
}

void CapturedCall::begin(void* self) noexcept {
  CapturedCall& call = *static_cast<CapturedCall*>(self);
  const std::scoped_lock lock(call.mutex_);
  if (call.core_ == nullptr || !call.core_->begin_captured(call, call.last_)) call.staged().abandon();
}

// --- The communicator's part

/// Returns what stands for the operations that launches will begin.
std::shared_ptr<Operation> CommunicatorCore::capture(Prepared& p) {
  auto call = CapturedCall::make(*this, std::move(p));
  Prepared like_those = call->request();
  const std::scoped_lock lock(operations_.mutex());
  captured_.push_back(std::move(call));
  auto operation = make_operation(like_those);
  operation->captured = true;
  return operation;
}

/// On a thread of the driver's. Waits for operations that use the same memory: the GPU has come behind them,
/// so they are about to end. A failure fails the communicator, because nobody waits for the operation.
bool CommunicatorCore::begin_captured(const CapturedCall& call, std::shared_ptr<Operation>& last) noexcept {
  try {
    if (last) wait(*last, std::nullopt);
    Prepared p = call.request();
    while (const auto other = operations_.conflicting(p.input_bytes, p.output_bytes))
      wait(*other, std::nullopt);
    std::unique_lock lock(operations_.mutex());
    last = launch(lock, p, std::nullopt);
    notifier_.add(last, [this, operation = last] {
      if (const auto failure = operation->failure()) control_->abort(*failure);
    });
    return true;
  } catch (const Error& e) {
    fail_captured({e.code(), e.what()});
  } catch (const std::exception& e) {
    fail_captured({ErrorCode::system, e.what()});
  }
  return false;
}

void CommunicatorCore::fail_captured(const Failure& why) {
  if (control_->failed() || operations_.is_closed()) return;
  control_->abort(
      {why.code, fmt::format("{}: a launch of a graph could not begin an operation: {}", name(), why.text)});
}

void CommunicatorCore::refuse_captured(const Operation& operation, const char* call) {
  if (operation.captured)
    throw Error(ErrorCode::invalid_usage,
                fmt::format("{}: this call was captured into a graph; synchronise the stream on which the "
                            "graph is launched",
                            call));
}

}  // namespace nzcl::comm
