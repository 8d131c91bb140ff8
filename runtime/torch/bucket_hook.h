// A communication hook for DistributedDataParallel: each bucket of gradients travels dense, sparse or
// compressed. Python's and C++'s are the same object.
#pragma once

#include <ATen/ATen.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <unordered_map>
#include <vector>

#include "nzcl/compress.h"
#include "nzcl/export.h"
#include "runtime/torch/process_group.h"
#include "runtime/torch/way_selector.h"

namespace nzcl_torch {

struct HookOptions {
  /// A compressor as compressor_from_text() reads it. Empty: buckets are never compressed.
  std::string compress = {};
  /// Try `tries` steps each way, and compress only if that is `more_steps` times faster. What the residuals
  /// hold when the choice falls on dense is sent with the next gradient.
  bool automatic = false;
  int tries = 5;
  /// Factor by which compression increases the steps needed for equal accuracy, from 1 to 1000.
  double more_steps = 1.5;
  /// The first step whose buckets are compressed. DistributedDataParallel arranges its buckets anew after its
  /// step 0, so that the least is 1.
  std::uint64_t start = 1;
  std::uint64_t min_bytes = 4096;  ///< smaller buckets stay dense
  /// AdaComp's bin for gradients with three dimensions or more, which are those of convolutions. Others have
  /// the compressor's.
  std::uint32_t convolution_bin = 50;
};

/// What has become of one bucket.
struct BucketReport {
  std::string parameters;  ///< their positions in the list that the hook was given
  std::uint64_t elements = 0;
  std::string way;             ///< of the last step: dense, sparse or compressed
  std::uint64_t steps = 0;     ///< in which the bucket was there
  std::uint64_t up_bytes = 0;  ///< that this rank sent towards the sums, headers included, in the last step
  std::uint64_t up_bytes_total = 0;  ///< the same in all steps
  std::optional<nzcl::CompressionReport> compression = {};
};

/// One rank's hook. Averages gradients over all ranks, which is what DistributedDataParallel leaves to hooks.
/// Sparse gradients travel as entries; dense ones are compressed from step `start` on, if they are large
/// enough and of type float, and otherwise they travel dense. All ranks need the same options.
///
/// Threads: steps come from one thread at a time; reports and checkpoints may be asked for between steps.
class NZCL_API BucketHook {
 public:
  /// `parameters` are those of the model, in the same order on all ranks and in all runs: the states of a
  /// checkpoint belong to positions in this list. Throws nzcl::Error for a text that is no compressor.
  BucketHook(c10::intrusive_ptr<GroupBase> group, HookOptions options,
             const std::vector<at::Tensor>& parameters);

  /// Starts the allreduce of one bucket. The future's value is the average, as a tensor. Does not throw: what
  /// goes wrong is the future's error, on every rank.
  c10::intrusive_ptr<c10::ivalue::Future> run(c10d::GradBucket& bucket);

  std::vector<BucketReport> report() const;
  /// What `automatic` has chosen, if it has.
  std::optional<Way> chosen() const { return selector_.chosen(); }
  std::uint64_t steps() const { return steps_; }  ///< that have begun

  /// The learning rate of the next steps (CompressorState::set_rate()). The same on all ranks, between steps.
  /// 0, as the first step of a warm-up may have, changes nothing.
  /// States take a rate that is within a per cent of their last one for the same, because a new one takes a
  /// pass over what they keep.
  void set_rate(double rate);

  /// The states of all buckets, by their parameters.
  std::map<std::string, std::vector<std::byte>> save() const;
  /// Continues with these states, and with what `automatic` had chosen, between any two steps. Their buckets
  /// are compressed from the next step on, also before `start`. DistributedDataParallel arranges its buckets
  /// anew after its first step: restore behind a first step whose result is thrown away, and training goes on
  /// bit by bit. States whose buckets have not come `start` steps later make the next step fail.
  void restore(std::map<std::string, std::vector<std::byte>> states, std::optional<Way> chosen);

 private:
  struct Bucket {
    std::unique_ptr<nzcl::CompressorState> state;
    std::uint64_t last_step = 0;  // in which it was there, counted from 1
  };
  /// Works complete on a thread of the communicator, maybe when the hook is gone.
  struct Ledger {
    std::mutex mutex;
    std::map<std::string, BucketReport> reports;
  };

  void begin_step();
  void choose_way();
  void check_restored() const;
  std::string name_of(const c10d::GradBucket& bucket) const;
  Way way_of(const std::string& name, const Bucket& bucket, const at::Tensor& buffer) const;
  void adapt_rate(nzcl::CompressorState& state) const;
  void prepare_state(const std::string& name, Bucket& bucket, const c10d::GradBucket& source);
  c10::intrusive_ptr<c10d::Work> start(const std::string& name, Bucket& bucket, c10d::GradBucket& source);
  void note(const std::string& name, const at::Tensor& buffer, const char* way);
  c10::intrusive_ptr<c10::ivalue::Future> recorded(const std::string& name,
                                                   const c10::intrusive_ptr<c10d::Work>& work);

  const c10::intrusive_ptr<GroupBase> group_;
  const HookOptions options_;
  const std::optional<nzcl::Compressor> compressor_;
  const std::shared_ptr<Ledger> ledger_ = std::make_shared<Ledger>();
  std::unordered_map<const c10::TensorImpl*, std::size_t> positions_;
  WaySelector selector_;
  float rate_ = 0;  // of learning; 0: none was given
  std::uint64_t steps_ = 0;
  std::uint64_t check_step_;  // in which every state must have had its bucket
  std::chrono::steady_clock::time_point step_began_;
  std::map<std::string, std::vector<std::byte>> restored_;  // states that have no bucket yet
  std::map<std::string, Bucket> buckets_;                   // by their parameters
};

/// The hook as c10d::Reducer::register_comm_hook() takes it.
NZCL_API std::unique_ptr<c10d::CommHookInterface> comm_hook(std::shared_ptr<BucketHook> hook);

}  // namespace nzcl_torch
