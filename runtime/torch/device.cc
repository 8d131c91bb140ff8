#include "runtime/torch/device.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cstdint>

namespace nzcl_torch {
namespace {

using c10::impl::VirtualGuardImpl;

}  // namespace

bool is_gpu(const c10::Device& device) {
  return device.is_cuda() || device.type() == c10::DeviceType::PrivateUse1;
}

std::vector<c10::Device> gpus_of(const std::vector<std::vector<at::Tensor>>& lists) {
  std::vector<c10::Device> devices;
  for (const auto& list : lists)
    for (const at::Tensor& t : list)
      if (is_gpu(t.device()) && std::ranges::find(devices, t.device()) == devices.end())
        devices.push_back(t.device());
  return devices;
}

void* stream_handle(const at::Tensor& tensor) {
  if (!is_gpu(tensor.device())) return nullptr;
  const c10::Stream stream = VirtualGuardImpl(tensor.device().type()).getStream(tensor.device());
  return reinterpret_cast<void*>(static_cast<std::intptr_t>(stream.id()));
}

std::vector<c10::Stream> current_streams(const std::vector<c10::Device>& devices) {
  std::vector<c10::Stream> streams;
  for (const c10::Device& device : devices)
    streams.push_back(VirtualGuardImpl(device.type()).getStream(device));
  return streams;
}

std::vector<at::Tensor> pieces_of(const at::Tensor& tensor) {
  if (tensor.layout() == at::kStrided) return {tensor};
  if (tensor.is_sparse()) return {tensor._indices(), tensor._values()};
  return {tensor.crow_indices(), tensor.col_indices(), tensor.values()};
}

std::vector<c10::ivalue::Future::WeakStorage> memory_of(const std::vector<at::Tensor>& tensors) {
  std::vector<c10::ivalue::Future::WeakStorage> memory;
  for (const at::Tensor& t : tensors)
    for (const at::Tensor& piece : pieces_of(t)) memory.push_back(piece.storage().getWeakStorageImpl());
  return memory;
}

void used_by(const at::Tensor& sparse, const std::vector<c10::Stream>& streams) {
  for (const c10::Stream& stream : streams) {
    if (stream.device() != sparse.device()) continue;
    for (const at::Tensor& piece : pieces_of(sparse))
      VirtualGuardImpl(stream.device_type()).recordDataPtrOnStream(piece.storage().data_ptr(), stream);
  }
}

/// nzcl finds a GPU by memory of it. The byte is kept, because to free it may take all that the GPU has to
/// do.
c10::Stream GroupStreams::stream_on(const c10::Device& device) {
  const std::scoped_lock lock(mutex_);
  const auto found = streams_.find(device.index());
  if (found != streams_.end()) return found->second.stream;
  const at::Tensor byte = at::empty({1}, at::TensorOptions(at::kByte).device(device));
  const auto memory = communicator_.register_buffer(byte.data_ptr(), byte.nbytes(), nzcl::MemoryKind::device);
  const auto number = reinterpret_cast<std::intptr_t>(communicator_.device_stream(memory));
  const c10::Stream stream(c10::Stream::UNSAFE, device, number);
  streams_.emplace(device.index(), OnGpu{.byte = byte, .stream = stream});
  return stream;
}

std::vector<c10::Stream> GroupStreams::behind_current(const std::vector<std::vector<at::Tensor>>& lists) {
  std::vector<c10::Stream> streams;
  for (const auto& list : lists)
    for (const at::Tensor& t : list) {
      if (!is_gpu(t.device()) || (t.layout() == at::kStrided && t.numel() == 0)) continue;
      const c10::Stream stream = stream_on(t.device());
      if (std::ranges::find(streams, stream) != streams.end()) continue;
      c10::Event reached(t.device().type());
      reached.record(VirtualGuardImpl(t.device().type()).getStream(t.device()));
      reached.block(stream);
      streams.push_back(stream);
    }
  return streams;
}

CurrentStreams::CurrentStreams(const std::vector<c10::Stream>& streams) {
  for (const c10::Stream& stream : streams)
    before_.push_back(VirtualGuardImpl(stream.device_type()).exchangeStream(stream));
}
CurrentStreams::~CurrentStreams() {
  for (const c10::Stream& stream : before_) VirtualGuardImpl(stream.device_type()).exchangeStream(stream);
}

std::vector<c10::Stream> other_streams(const std::vector<c10::Device>& devices) {
  std::vector<c10::Stream> streams;
  for (const c10::Device& device : devices)
    streams.push_back(VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device));
  return streams;
}

}  // namespace nzcl_torch
