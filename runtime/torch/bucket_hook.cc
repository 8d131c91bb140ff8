#include "runtime/torch/bucket_hook.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>
#include <variant>

#include "runtime/torch/device.h"
#include "runtime/torch/error_text.h"
#include "runtime/torch/types.h"

namespace nzcl_torch {
namespace {

using c10::ivalue::Future;

std::optional<nzcl::Compressor> compressor_of(const HookOptions& options) {
  TORCH_CHECK(options.start >= 1,
              "the hook's start is 0, but buckets are arranged anew after the first step");
  TORCH_CHECK(options.tries >= 1, "the hook's tries is ", options.tries, "; the least is 1");
  TORCH_CHECK(options.more_steps >= 1 && options.more_steps <= 1000, "the hook's more_steps is ",
              options.more_steps, "; it may be from 1 to 1000");
  TORCH_CHECK(!options.automatic || !options.compress.empty(), "the hook has no compressor to choose");
  if (options.compress.empty()) return std::nullopt;
  return nzcl::compressor_from_text(options.compress);
}

/// The parts of a bucket: one layer for each gradient. A gradient without elements is no layer. Only AdaComp
/// has bins.
std::vector<nzcl::Layer> layers_of(const c10d::GradBucket& bucket, const nzcl::Compressor& compressor,
                                   std::uint32_t convolution_bin) {
  if (!std::holds_alternative<nzcl::AdaComp>(compressor.selection)) convolution_bin = 0;
  std::vector<nzcl::Layer> layers;
  for (const at::Tensor& g : bucket.getGradients())
    if (g.numel() > 0)
      layers.push_back(
          {.elements = static_cast<std::uint64_t>(g.numel()), .bin = g.dim() >= 3 ? convolution_bin : 0});
  return layers;
}

/// Zeros come by rows (of an embedding, of the neurons that did not fire), so a block is a row, or several of
/// short rows. Tensors without rows, and such with very long ones, have the usual blocks. All ranks have the
/// same model, so they come to the same.
std::uint64_t rows_of(const at::Tensor& t) {
  constexpr std::uint64_t kLongestRow = 4096, kLeastBytes = 64;
  const std::uint64_t row = t.dim() >= 2 ? static_cast<std::uint64_t>(t.size(-1)) : 0;
  if (row == 0 || row > kLongestRow) return block_of(t);
  const std::uint64_t bytes = row * t.element_size();
  return row * ((kLeastBytes + bytes - 1) / bytes);
}

/// A bucket is one long row, in which the rows of its gradients cannot be seen. Where one gradient fills most
/// of it, and its rows begin where blocks do, blocks are its rows.
std::uint64_t blocks_in(const c10d::GradBucket& bucket) {
  const at::Tensor& buffer = bucket.getBuffer();
  for (const at::Tensor& g : bucket.getGradients()) {
    if (2 * g.numel() <= buffer.numel()) continue;
    const auto block = rows_of(g);
    if (static_cast<std::uint64_t>(g.storage_offset() - buffer.storage_offset()) % block == 0) return block;
  }
  return block_of(buffer);
}

/// A state keeps its residual where the bucket is.
std::unique_ptr<nzcl::CompressorState> make_state(const nzcl::Compressor& compressor,
                                                  const std::vector<nzcl::Layer>& layers,
                                                  const at::Tensor& buffer) {
  const std::span<const nzcl::Layer> all(layers);
  if (is_gpu(buffer.device()))
    return std::make_unique<nzcl::CompressorState>(compressor, all, nzcl::GpuOf{buffer.data_ptr()});
  return std::make_unique<nzcl::CompressorState>(compressor, all);
}

/// What a state has kept back goes with the next gradient. That of one on a GPU is read through a state on
/// the host that continues it.
void add_residual(const at::Tensor& buffer, const nzcl::CompressorState& state,
                  const std::vector<nzcl::Layer>& layers) {
  const at::NoGradGuard no_grad;
  const nzcl::CompressorState* here = &state;
  std::optional<nzcl::CompressorState> copy;
  if (is_gpu(buffer.device())) {
    copy.emplace(state.compressor(), std::span<const nzcl::Layer>(layers));
    copy->restore(state.save());
    here = &*copy;
  }
  const std::span<const float> residual = here->residual();
  at::Tensor sum = buffer;
  sum.add_(at::from_blob(const_cast<float*>(residual.data()),  // which is only read
                         {static_cast<std::int64_t>(residual.size())}, at::kFloat)
               .to(buffer.device()));
}

class CommHook final : public c10d::CommHookInterface {
 public:
  explicit CommHook(std::shared_ptr<BucketHook> hook) : hook_(std::move(hook)) {}
  c10::intrusive_ptr<Future> runHook(c10d::GradBucket& bucket) override { return hook_->run(bucket); }
  at::Tensor parseHookResult(const c10::IValue& result) override { return result.toTensor(); }

 private:
  const std::shared_ptr<BucketHook> hook_;
};

}  // namespace

BucketHook::BucketHook(c10::intrusive_ptr<GroupBase> group, HookOptions options,
                       const std::vector<at::Tensor>& parameters)
    : group_(std::move(group)),
      options_(std::move(options)),
      compressor_(compressor_of(options_)),
      selector_(options_.tries, options_.more_steps),
      check_step_(options_.start + 1) {
  for (const at::Tensor& p : parameters) positions_.emplace(p.unsafeGetTensorImpl(), positions_.size());
  if (compressor_ && !options_.automatic) selector_.choose(Way::compressed);
}

/// DistributedDataParallel cannot take an exception here, so what goes wrong is the future's error. The other
/// ranks fail, too: the bucket's place in the order is taken.
c10::intrusive_ptr<Future> BucketHook::run(c10d::GradBucket& source) {
  try {
    if (source.getIndex() == 0) begin_step();
    const std::string name = name_of(source);
    Bucket& bucket = buckets_[name];
    bucket.last_step = steps_;
    return recorded(name, start(name, bucket, source));
  } catch (const std::exception& e) {
    return failed(*group_, text_of(e))->getFuture();
  }
}

/// A step lasts from its first bucket to the next one's, so that what the network delays and what a
/// compressor costs count in the same way.
void BucketHook::begin_step() {
  const auto now = std::chrono::steady_clock::now();
  if (compressor_ && steps_ > options_.start) {
    selector_.took(std::chrono::duration<double>(now - step_began_).count());
    if (selector_.must_choose()) choose_way();
  }
  if (steps_ == check_step_) check_restored();
  step_began_ = now;
  ++steps_;
}

void BucketHook::choose_way() {
  const WaySelector::Times own = selector_.medians();
  std::vector<at::Tensor> tensors{at::tensor({own[0], own[1]}, at::kDouble)};
  c10d::AllreduceOptions options;
  options.reduceOp = c10d::ReduceOp::MAX;
  group_->allreduce(tensors, options)->wait();
  const double* const slowest = tensors[0].data_ptr<double>();
  selector_.choose({slowest[0], slowest[1]});
}

/// Every state must belong to a bucket as they are arranged by now.
void BucketHook::check_restored() const {
  std::string without;
  for (const auto& [name, state] : restored_) without += " [" + name + "]";
  for (const auto& [name, bucket] : buckets_)
    if (bucket.state && bucket.last_step < steps_) without += " [" + name + "]";
  TORCH_CHECK(without.empty(), "the hook has states of buckets that do not exist:", without,
              ". Are the model and the size of buckets those of the checkpoint?");
}

std::string BucketHook::name_of(const c10d::GradBucket& bucket) const {
  std::string name;
  for (const at::Tensor& p : bucket.getParameters()) {
    const auto found = positions_.find(p.unsafeGetTensorImpl());
    TORCH_CHECK(found != positions_.end(), "a bucket has a parameter that the hook was not given");
    name += (name.empty() ? "" : ",") + std::to_string(found->second);
  }
  return name;
}

Way BucketHook::way_of(const std::string& name, const Bucket& bucket, const at::Tensor& buffer) const {
  if (!compressor_ || buffer.scalar_type() != at::kFloat || buffer.nbytes() < options_.min_bytes)
    return Way::dense;
  const bool begun = steps_ > options_.start || bucket.state || restored_.contains(name);
  return begun ? selector_.next() : Way::dense;
}

void BucketHook::prepare_state(const std::string& name, Bucket& bucket, const c10d::GradBucket& source) {
  if (!bucket.state)
    bucket.state = make_state(*compressor_, layers_of(source, *compressor_, options_.convolution_bin),
                              source.getBuffer());
  const auto found = restored_.find(name);
  if (found == restored_.end()) return;
  bucket.state->restore(found->second);
  restored_.erase(found);
}

void BucketHook::set_rate(double rate) {
  TORCH_CHECK(rate == 0 || (rate >= 1e-15 && rate <= 1e15), "the rate is ", rate,
              "; it may be 0, or from 1e-15 to 1e15");
  if (rate > 0) rate_ = static_cast<float>(rate);
}

void BucketHook::adapt_rate(nzcl::CompressorState& state) const {
  constexpr float kSame = 0.01f;
  if (rate_ > 0 && std::abs(rate_ - state.rate()) > kSame * rate_) state.set_rate(rate_);
}

c10::intrusive_ptr<c10d::Work> BucketHook::start(const std::string& name, Bucket& bucket,
                                                 c10d::GradBucket& source) {
  const at::Tensor& buffer = source.getBuffer();
  if (buffer.is_sparse()) {
    note(name, buffer, "sparse");
    std::vector<at::Tensor> tensors{buffer};
    c10d::AllreduceOptions options;
    options.reduceOp = c10d::ReduceOp::AVG;
    return group_->allreduce(tensors, options);
  }
  const Way way = way_of(name, bucket, buffer);
  note(name, buffer, way == Way::dense ? "dense" : "compressed");
  if (way == Way::compressed || restored_.contains(name)) prepare_state(name, bucket, source);
  if (bucket.state) adapt_rate(*bucket.state);
  if (way == Way::compressed) return average_compressed(*group_, *bucket.state, buffer);
  if (bucket.state && selector_.chosen()) {
    add_residual(buffer, *bucket.state, layers_of(source, *compressor_, options_.convolution_bin));
    bucket.state.reset();
  }
  return average(*group_, buffer, blocks_in(source));
}

void BucketHook::note(const std::string& name, const at::Tensor& buffer, const char* way) {
  const std::scoped_lock lock(ledger_->mutex);
  BucketReport& report = ledger_->reports[name];
  report.parameters = name;
  report.elements = static_cast<std::uint64_t>(buffer.numel());
  report.way = way;
}

c10::intrusive_ptr<Future> BucketHook::recorded(const std::string& name,
                                                const c10::intrusive_ptr<c10d::Work>& work) {
  return work->getFuture()->then(
      [ledger = ledger_, name,
       work](Future& future) -> std::tuple<c10::IValue, std::vector<Future::WeakStorage>> {
        const c10::IValue result = future.value();  // throws the work's error
        const std::uint64_t bytes = statistics(*work).bytes_sent;
        const std::scoped_lock lock(ledger->mutex);
        BucketReport& report = ledger->reports.at(name);
        ++report.steps;
        report.up_bytes = bytes;
        report.up_bytes_total += bytes;
        const at::Tensor reduced = result.toTensorVector().front();
        return {reduced, memory_of({reduced})};
      },
      c10::TensorType::get());
}

std::vector<BucketReport> BucketHook::report() const {
  const std::scoped_lock lock(ledger_->mutex);
  std::vector<BucketReport> reports;
  for (const auto& [name, report] : ledger_->reports) {
    reports.push_back(report);
    const Bucket& bucket = buckets_.at(name);
    if (bucket.state) reports.back().compression = bucket.state->report();
  }
  return reports;
}

std::map<std::string, std::vector<std::byte>> BucketHook::save() const {
  std::map<std::string, std::vector<std::byte>> states = restored_;
  for (const auto& [name, bucket] : buckets_)
    if (bucket.state) states[name] = bucket.state->save();
  return states;
}

void BucketHook::restore(std::map<std::string, std::vector<std::byte>> states, std::optional<Way> chosen) {
  TORCH_CHECK(states.empty() || compressor_, "the hook is given states, but has no compressor");
  restored_ = std::move(states);
  for (auto& [name, bucket] : buckets_) bucket.state.reset();
  check_step_ = steps_ + options_.start + 1;
  if (options_.automatic && chosen) selector_.choose(*chosen);
}

std::unique_ptr<c10d::CommHookInterface> comm_hook(std::shared_ptr<BucketHook> hook) {
  return std::make_unique<CommHook>(std::move(hook));
}

}  // namespace nzcl_torch
