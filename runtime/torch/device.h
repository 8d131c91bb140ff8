// Tensors in memory of a GPU: in whose order they are read, and where the group does what it does to them.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Stream.h>

#include <map>
#include <mutex>
#include <vector>

#include "nzcl/communicator.h"

namespace nzcl_torch {

/// Whether tensors on this device are in memory of a GPU. nzcl finds out itself whether it knows that GPU.
bool is_gpu(const c10::Device& device);

/// The GPUs of these tensors, each once.
std::vector<c10::Device> gpus_of(const std::vector<std::vector<at::Tensor>>& lists);

/// The streams that are current on this thread, one for each of these GPUs.
std::vector<c10::Stream> current_streams(const std::vector<c10::Device>& devices);

/// The dense tensors of which a sparse one, in COO or CSR form, consists; or a dense one itself.
std::vector<at::Tensor> pieces_of(const at::Tensor& tensor);

/// The memory of these tensors, for a future that has them: libtorch 1.13 does not find that of sparse ones.
std::vector<c10::ivalue::Future::WeakStorage> memory_of(const std::vector<at::Tensor>& tensors);

/// Says that a sparse tensor's memory, which was made in the order of another stream, is used in these
/// streams as well: libtorch gives it to nobody else, once it is freed, before they have come so far.
void used_by(const at::Tensor& sparse, const std::vector<c10::Stream>& streams);

/// What a request says of the order in which its input is read: nzcl's handle of the stream that is current
/// for this tensor's device on this thread, as long as a group's stream is. Nothing for host memory.
void* stream_handle(const at::Tensor& tensor);

/// The group's streams, one on each GPU. Of libtorch it needs only what is the same for every kind of device:
/// it is not compiled against CUDA. libtorch takes any stream whose number is its handle, and the streams are
/// nzcl's, whose handles are known. Thread-safe.
class GroupStreams {
 public:
  explicit GroupStreams(nzcl::Communicator& communicator) : communicator_(communicator) {}

  /// Makes the group's streams wait for all that has been put into those which are current for the tensors'
  /// devices, and returns them: one for each GPU that has any of these tensors. A dense tensor without
  /// elements needs none; a sparse one without entries may get some.
  std::vector<c10::Stream> behind_current(const std::vector<std::vector<at::Tensor>>& lists);

 private:
  struct OnGpu {
    at::Tensor byte;  // any memory there
    c10::Stream stream;
  };
  c10::Stream stream_on(const c10::Device& device);

  nzcl::Communicator& communicator_;
  std::mutex mutex_;
  std::map<c10::DeviceIndex, OnGpu> streams_;
};

/// Makes streams current, on the thread that made this and as long as it lives.
class CurrentStreams {
 public:
  explicit CurrentStreams(const std::vector<c10::Stream>& streams);
  ~CurrentStreams();
  CurrentStreams(const CurrentStreams&) = delete;
  CurrentStreams& operator=(const CurrentStreams&) = delete;

 private:
  std::vector<c10::Stream> before_;
};

/// A stream of libtorch's own on each device, in which nobody waits for the callers' work.
std::vector<c10::Stream> other_streams(const std::vector<c10::Device>& devices);

}  // namespace nzcl_torch
