#include "runtime/comm/gpu/far_slot.h"

#include <fmt/format.h>
#include <unistd.h>

#include "nzcl/error.h"
#include "runtime/base/divide.h"

namespace nzcl::comm {
namespace {

std::size_t page_bytes() { return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)); }
std::size_t to_page(std::size_t bytes) { return ceil_div(bytes, page_bytes()) * page_bytes(); }

}  // namespace

FarSlot::FarSlot(std::shared_ptr<gpu::Gpu> gpu, Registrations& registrations, std::size_t bytes)
    : gpu_(std::move(gpu)), allocated_(gpu_->allocate(to_page(bytes) + page_bytes())) {
  const auto before = reinterpret_cast<std::uintptr_t>(allocated_) % page_bytes();
  data_ = allocated_ + (before == 0 ? 0 : page_bytes() - before);
  const std::span<std::byte> pages(data_, to_page(bytes));
  try {
    const gpu::LentMemory lent = gpu_->lend(pages);
    region_ = registrations.add_gpu_memory({lent.descriptor.get(), lent.offset, pages});
  } catch (const Error& e) {
    gpu_->free(allocated_);
    throw Error(e.code(), fmt::format("NZCL_TUNE=gpu_direct=on: {}", e.what()));
  } catch (...) {
    gpu_->free(allocated_);
    throw;
  }
}

FarSlot::~FarSlot() {
  region_.reset();
  gpu_->free(allocated_);
}

}  // namespace nzcl::comm
