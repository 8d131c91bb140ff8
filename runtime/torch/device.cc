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

c10::Stream GroupStreams::stream_on(const at::Tensor& tensor) {
  const std::scoped_lock lock(mutex_);
  const auto found = streams_.find(tensor.device().index());
  if (found != streams_.end()) return found->second;
  const auto memory =
      communicator_.register_buffer(tensor.data_ptr(), tensor.nbytes(), nzcl::MemoryKind::device);
  const auto number = reinterpret_cast<std::intptr_t>(communicator_.device_stream(memory));
  const c10::Stream stream(c10::Stream::UNSAFE, tensor.device(), number);
  streams_.emplace(tensor.device().index(), stream);
  return stream;
}

std::vector<c10::Stream> GroupStreams::behind_current(const std::vector<std::vector<at::Tensor>>& lists) {
  std::vector<c10::Stream> streams;
  for (const auto& list : lists)
    for (const at::Tensor& t : list) {
      if (!is_gpu(t.device())) continue;
      const at::Tensor memory = t.is_sparse() ? t._values() : t;
      if (memory.numel() == 0) continue;
      const c10::Stream stream = stream_on(memory);
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
