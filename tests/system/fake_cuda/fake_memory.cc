// The fake driver's memory: what it says of a pointer, what it allocates, maps and registers, and what it
// lends to devices and to other processes.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <tuple>

#include "tests/system/fake_cuda/fake_state.h"
#include "verbs/fd.h"

using namespace nzcl::test::fake;
namespace verbs = nzcl::verbs;

namespace {

constexpr std::size_t kGranularity = 64 << 10;  // a GPU's is 2 MiB

}  // namespace

// --- What a test controls.

/// From now on there is no memory left on the GPU, and none that can be pinned, or there is some again.
FAKE fakeCudaFill(int gpu, int pinned) {
  state().full = gpu != 0;
  state().pinned_full = pinned != 0;
  return kSuccess;
}
/// Says that memory is of another kind: managed, of another context than the primary one, or of another GPU.
FAKE fakeCudaDeclare(DevicePointer pointer, unsigned managed, Context context, int ordinal) {
  const std::scoped_lock lock(state().mutex);
  const auto found = state().memory.find(pointer);
  if (found == state().memory.end()) return kInvalidValue;
  found->second.managed = managed;
  found->second.context = context;
  found->second.ordinal = ordinal;
  return kSuccess;
}
/// How often something was allocated, registered, opened or made.
FAKE fakeCudaMade() { return state().made; }
/// How many pieces of the host's memory are registered.
FAKE fakeCudaRegistered() {
  const std::scoped_lock lock(state().mutex);
  return static_cast<int>(state().registered.size());
}

// --- The driver.

FAKE cuPointerGetAttributes(unsigned count, int* attributes, void** values, DevicePointer pointer) {
  if (const int wrong = ready(false)) return wrong;
  const std::scoped_lock lock(state().mutex);
  static const Memory nothing{.pages = nullptr, .segments = {}, .type = 0, .ordinal = -2};
  const bool there = segment_with(pointer).second != 0;
  const Memory& found = there ? piece_of(state().memory, pointer)->second : nothing;
  for (unsigned i = 0; i < count; ++i) {
    switch (attributes[i]) {
      case cuda::kAttributeContext:
        *static_cast<Context*>(values[i]) = found.context;
        break;
      case cuda::kAttributeMemoryType:
        *static_cast<unsigned*>(values[i]) = found.type;
        break;
      case cuda::kAttributeIsManaged:
        *static_cast<unsigned*>(values[i]) = found.managed;
        break;
      case cuda::kAttributeDeviceOrdinal:
        *static_cast<int*>(values[i]) = found.ordinal;
        break;
      default:
        return kInvalidValue;
    }
  }
  return kSuccess;
}
FAKE cuMemGetAddressRange_v2(DevicePointer* base, std::size_t* bytes, DevicePointer pointer) {
  if (const int wrong = ready()) return wrong;
  const std::scoped_lock lock(state().mutex);
  std::tie(*base, *bytes) = segment_with(pointer);
  return *bytes == 0 ? kNotFound : kSuccess;
}
FAKE cuMemHostRegister_v2(void* memory, std::size_t bytes, unsigned flags) {
  if (const int wrong = ready()) return wrong;
  ++state().made;
  if (flags != (cuda::kHostRegisterPortable | cuda::kHostRegisterMapped)) return kInvalidValue;
  if (state().pinned_full) return kOutOfMemory;
  const std::scoped_lock lock(state().mutex);
  state().registered[reinterpret_cast<std::uintptr_t>(memory)] = bytes;
  return kSuccess;
}
FAKE cuMemHostUnregister(void* memory) {
  if (const int wrong = ready()) return wrong;
  const std::scoped_lock lock(state().mutex);
  return state().registered.erase(reinterpret_cast<std::uintptr_t>(memory)) == 1 ? kSuccess : kInvalidValue;
}
FAKE cuMemHostGetDevicePointer_v2(DevicePointer* pointer, void* memory, unsigned) {
  *pointer = reinterpret_cast<DevicePointer>(memory);
  return ready();
}
FAKE cuMemAlloc_v2(DevicePointer* pointer, std::size_t bytes) {
  if (const int wrong = ready()) return wrong;
  ++state().made;
  if (state().full) return kOutOfMemory;
  auto pages = std::make_unique<TwoMappings>(bytes, false);
  const std::scoped_lock lock(state().mutex);
  *pointer = reinterpret_cast<DevicePointer>(pages->host());
  state().memory[*pointer] = {.pages = std::move(pages), .segments = {{0, bytes}}, .context = kPrimary};
  return kSuccess;
}
FAKE cuMemFree_v2(DevicePointer pointer) {
  if (const int wrong = ready()) return wrong;
  const std::scoped_lock lock(state().mutex);
  return state().memory.erase(pointer) == 1 ? kSuccess : kInvalidValue;
}
/// Virtual memory: addresses are reserved, and memory is created and mapped there apart from that. It belongs
/// to no context.
FAKE cuMemGetAllocationGranularity(std::size_t* bytes, const void*, int) {
  *bytes = kGranularity;
  return ready();
}
FAKE cuMemAddressReserve(DevicePointer* pointer, std::size_t bytes, std::size_t, DevicePointer,
                         unsigned long long) {
  if (const int wrong = ready()) return wrong;
  ++state().made;
  if (bytes == 0 || bytes % kGranularity != 0) return kInvalidValue;
  auto pages = std::make_unique<TwoMappings>(bytes, false);
  const std::scoped_lock lock(state().mutex);
  *pointer = reinterpret_cast<DevicePointer>(pages->host());
  state().memory[*pointer] = {.pages = std::move(pages), .segments = {}};
  return kSuccess;
}
FAKE cuMemAddressFree(DevicePointer pointer, std::size_t) {
  if (const int wrong = ready()) return wrong;
  const std::scoped_lock lock(state().mutex);
  const auto found = state().memory.find(pointer);
  if (found == state().memory.end() || !found->second.segments.empty()) return kInvalidValue;
  state().memory.erase(found);
  return kSuccess;
}
FAKE cuMemCreate(unsigned long long* handle, std::size_t bytes, const void*, unsigned long long) {
  if (const int wrong = ready()) return wrong;
  ++state().made;
  if (bytes == 0 || bytes % kGranularity != 0) return kInvalidValue;
  const std::scoped_lock lock(state().mutex);
  *handle = state().created.empty() ? 1 : state().created.rbegin()->first + 1;
  state().created[*handle] = bytes;
  return kSuccess;
}
FAKE cuMemRelease(unsigned long long handle) {
  if (const int wrong = ready()) return wrong;
  const std::scoped_lock lock(state().mutex);
  return state().created.erase(handle) == 1 ? kSuccess : kInvalidValue;
}
FAKE cuMemMap(DevicePointer pointer, std::size_t bytes, std::size_t offset, unsigned long long handle,
              unsigned long long) {
  if (const int wrong = ready()) return wrong;
  const std::scoped_lock lock(state().mutex);
  const auto created = state().created.find(handle);
  const auto range = piece_of(state().memory, pointer);
  if (created == state().created.end() || created->second != bytes || offset != 0 ||
      range == state().memory.end() || pointer - range->first + bytes > range->second.pages->bytes())
    return kInvalidValue;
  range->second.segments[pointer - range->first] = bytes;
  return kSuccess;
}
FAKE cuMemSetAccess(DevicePointer, std::size_t, const void*, std::size_t) { return ready(); }
FAKE cuMemUnmap(DevicePointer pointer, std::size_t) {
  if (const int wrong = ready()) return wrong;
  const std::scoped_lock lock(state().mutex);
  const auto range = piece_of(state().memory, pointer);
  return range != state().memory.end() && range->second.segments.erase(pointer - range->first) == 1
             ? kSuccess
             : kInvalidValue;
}
/// Whole allocations, which the pages of a memfd stand for.
FAKE cuMemGetHandleForAddressRange(void* handle, DevicePointer pointer, std::size_t bytes, int type,
                                   unsigned long long flags) {
  if (const int wrong = ready()) return wrong;
  const std::scoped_lock lock(state().mutex);
  const auto found = state().memory.find(pointer);
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  if (found == state().memory.end() || type != cuda::kRangeHandleDmabuf || flags != 0 ||
      pointer % page != 0 || bytes % page != 0 || bytes > found->second.pages->bytes())
    return kInvalidValue;
  const int descriptor = ::fcntl(found->second.pages->descriptor(), F_DUPFD_CLOEXEC, 0);
  std::memcpy(handle, &descriptor, sizeof descriptor);
  return descriptor < 0 ? kInvalidHandle : kSuccess;
}
/// A handle is the process and the descriptor of the memory's pages. Only other processes can open it.
FAKE cuIpcGetMemHandle(cuda::IpcHandle* handle, DevicePointer pointer) {
  if (const int wrong = ready()) return wrong;
  const std::scoped_lock lock(state().mutex);
  const auto found = state().memory.find(pointer);
  if (found == state().memory.end() || found->second.context == nullptr) return kInvalidValue;
  const TwoMappings& pages = *found->second.pages;
  const long all[]{::getpid(), pages.descriptor(), static_cast<long>(pages.bytes())};
  std::memcpy(handle->bytes, all, sizeof all);
  return kSuccess;
}
FAKE cuIpcOpenMemHandle_v2(DevicePointer* pointer, cuda::IpcHandle handle, unsigned flags) {
  if (const int wrong = ready()) return wrong;
  ++state().made;
  long all[3]{};
  std::memcpy(all, handle.bytes, sizeof all);
  if (all[0] == ::getpid() || flags != cuda::kIpcLazyEnablePeerAccess) return kInvalidValue;
  const std::string path = "/proc/" + std::to_string(all[0]) + "/fd/" + std::to_string(all[1]);
  const verbs::Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  const auto bytes = static_cast<std::size_t>(all[2]);
  void* const at = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (at == MAP_FAILED) return kInvalidHandle;
  *pointer = reinterpret_cast<DevicePointer>(at);
  const std::scoped_lock lock(state().mutex);
  state().opened[*pointer] = bytes;
  return kSuccess;
}
FAKE cuIpcCloseMemHandle(DevicePointer pointer) {
  if (const int wrong = ready()) return wrong;
  const std::scoped_lock lock(state().mutex);
  const auto found = state().opened.find(pointer);
  if (found == state().opened.end()) return kInvalidValue;
  ::munmap(reinterpret_cast<void*>(pointer), found->second);
  state().opened.erase(found);
  return kSuccess;
}
/// There is one GPU.
FAKE cuDeviceCanAccessPeer(int* can, Device, Device) {
  *can = 0;
  return kInvalidValue;
}
FAKE cuCtxEnablePeerAccess(Context, unsigned) { return kInvalidValue; }
FAKE cuMemcpyAsync(DevicePointer to, DevicePointer from, std::size_t bytes, FakeStream stream) {
  if (const int wrong = ready()) return wrong;
  const std::scoped_lock lock(state().mutex);
  const auto at = [&](DevicePointer pointer) {
    const std::uintptr_t reached = reach(pointer, bytes);
    return reinterpret_cast<void*>(reached != 0 ? reached : pointer);  // ordinary memory of the host
  };
  void *const target = at(to), *const source = at(from);
  return add(stream, [=] { std::memcpy(target, source, bytes); });
}
