#include "verbs/ofi/domains.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "verbs/random.h"

namespace nzcl::verbs::ofi {
namespace {

/// Memory can only be in several domains under one key if nzcl chooses the keys, and if no write needs a
/// descriptor, which would be another one in each domain.
bool needs_one_each(const fi_info& info) {
  const std::string_view provider = info.fabric_attr->prov_name;
  return (provider == "net" || provider == "tcp") &&
         (info.domain_attr->mr_mode & (FI_MR_PROV_KEY | FI_MR_LOCAL)) == 0;
}

}  // namespace

class Domains::Region final : public MemoryRegion {
 public:
  Region(Domains& domains, std::uint64_t number, std::span<std::byte> bytes, RemoteMemory remote,
         void* descriptor)
      : MemoryRegion(descriptor), domains_(domains), number_(number), bytes_(bytes), remote_(remote) {}
  ~Region() override { domains_.remove(number_); }
  std::span<std::byte> bytes() const noexcept override { return bytes_; }
  RemoteMemory remote() const noexcept override { return remote_; }

 private:
  Domains& domains_;
  const std::uint64_t number_;
  const std::span<std::byte> bytes_;
  const RemoteMemory remote_;
};

Domains::Domains(fid_fabric* fabric, fi_info* info, std::string device_name)
    : fabric_(fabric),
      info_(info),
      device_name_(std::move(device_name)),
      one_each_(needs_one_each(*info)),
      next_region_(draw_first_number(*info)) {
  // A domain that is there from the beginning shows at once whether one can be opened.
  domains_.push_back({open(), std::make_unique<std::mutex>(), {}});
}

Handle<fid_domain> Domains::open() const {
  fid_domain* domain = nullptr;
  check(fi_domain(fabric_, info_, &domain, nullptr), device_name_ + ": opening the domain",
        ErrorCode::unavailable);
  return Handle<fid_domain>(domain);
}

/// Half of all keys that the provider takes are below the first one, so that the numbers never wrap.
std::uint64_t Domains::draw_first_number(const fi_info& info) {
  const std::size_t bits = 8 * std::clamp<std::size_t>(info.domain_attr->mr_key_size, 1, 8);
  return std::max<std::uint64_t>(1, random_number() >> (65 - bits));
}

Handle<fid_mr> Domains::enroll(fid_domain* domain, std::span<std::byte> bytes, std::uint64_t number) const {
  fid_mr* mr = nullptr;
  const bool own_keys = (info_->domain_attr->mr_mode & FI_MR_PROV_KEY) == 0;
  const int code = fi_mr_reg(domain, bytes.data(), bytes.size(), FI_WRITE | FI_REMOTE_WRITE | FI_READ, 0,
                             own_keys ? number : 0, 0, &mr, nullptr);
  if (code != 0) {
    throw Error(
        ErrorCode::system,
        fmt::format("{}: registering {} MiB: {}{}", device_name_, bytes.size() >> 20, fi_strerror(-code),
                    code == -ENOMEM ? "; raise the limit on locked memory (ulimit -l)" : ""));
  }
  return Handle<fid_mr>(mr);
}

Domains::ForEndpoint Domains::for_endpoint() {
  const std::scoped_lock lock(mutex_);
  if (!one_each_) return {{domains_.front().domain.get(), [](fid_domain*) {}}, nullptr};
  Domain made{open(), std::make_unique<std::mutex>(), {}};
  for (const auto& [number, bytes] : regions_)
    made.memory.emplace(number, enroll(made.domain.get(), bytes, number));
  fid_domain* const domain = made.domain.get();
  std::mutex* const keys = made.keys.get();
  domains_.push_back(std::move(made));
  return {{domain, [this](const fid_domain* released) { close(released); }}, keys};
}

std::unique_ptr<MemoryRegion> Domains::register_memory(std::span<std::byte> bytes) {
  const std::scoped_lock lock(mutex_);
  const std::uint64_t number = next_region_++;
  std::list<Memory> enrolled;
  for (const Domain& d : domains_) {
    const std::scoped_lock keys(*d.keys);
    enrolled.emplace_back().emplace(number, enroll(d.domain.get(), bytes, number));
  }
  const bool by_address = (info_->domain_attr->mr_mode & FI_MR_VIRT_ADDR) != 0;
  fid_mr* const first = enrolled.front().at(number).get();
  const RemoteMemory remote{by_address ? reinterpret_cast<std::uint64_t>(bytes.data()) : 0, fi_mr_key(first)};
  auto region =
      std::make_unique<Region>(*this, number, bytes, remote, one_each_ ? nullptr : fi_mr_desc(first));
  regions_.emplace(number, bytes);
  for (Domain& d : domains_) {
    d.memory.merge(enrolled.front());
    enrolled.pop_front();
  }
  return region;
}

void Domains::remove(std::uint64_t region) noexcept {
  const std::scoped_lock lock(mutex_);
  regions_.erase(region);
  for (Domain& d : domains_) {
    const std::scoped_lock keys(*d.keys);
    d.memory.erase(region);
  }
}

void Domains::close(const fid_domain* domain) noexcept {
  const std::scoped_lock lock(mutex_);
  domains_.remove_if([&](const Domain& d) { return d.domain.get() == domain; });
}

}  // namespace nzcl::verbs::ofi
