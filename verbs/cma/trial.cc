#include "verbs/cma/trial.h"

#include <fmt/format.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "nzcl/error.h"
#include "verbs/descriptors.h"
#include "verbs/pid_namespace.h"
#include "verbs/segment/nonce.h"

namespace nzcl::verbs::cma {
namespace {

/// The random number lies first, and the peers' cells follow it.
std::size_t cell_of(PeerId peer) { return (1 + std::size_t{peer}) * sizeof(std::uint64_t); }

}  // namespace

CmaTrial::CmaTrial(const TrialOptions& options)
    : options_(options),
      nonce_(random_number()),
      pid_namespace_(pid_namespace()),
      fd_(segment::make_memory_fd(cell_of(static_cast<PeerId>(options.peers)))),
      memory_(segment::map_shared(fd_.get(), cell_of(static_cast<PeerId>(options.peers)))) {
  std::memcpy(memory_.bytes().data(), &nonce_, sizeof nonce_);
}

std::string CmaTrial::offer() const {
  const Offer mine{.nonce = nonce_,
                   .address = reinterpret_cast<std::uint64_t>(memory_.bytes().data()),
                   .pid_namespace = pid_namespace_,
                   .pid = ::getpid(),
                   .fd = fd_.get()};
  return {reinterpret_cast<const char*>(&mine), sizeof mine};
}

std::string CmaTrial::try_peer(std::string_view text) {
  Offer offer;
  if (text.size() != sizeof offer) return "cma: a peer's offer has a wrong length";
  std::memcpy(&offer, text.data(), sizeof offer);
  if (offer.pid_namespace != pid_namespace_)
    return "cma: the peer is in another pid namespace; use NZCL_TRANSPORT=tcp";
  try {
    const Process peer(offer.pid);
    const Fd memory = peer.take_fd(offer.fd);
    if (!segment::holds(memory, 0, offer.nonce)) {
      return fmt::format(
          "cma: process {} is another one here (the peer has ended, or is on another host); "
          "use NZCL_TRANSPORT=tcp",
          offer.pid);
    }
    return write_cell(peer, memory, offer);
  } catch (const Error& e) {
    return e.what();
  }
}

std::string CmaTrial::write_cell(const Process& peer, const Fd& memory, const Offer& offer) const {
  std::uint64_t mark = nonce_;
  const iovec from{&mark, sizeof mark};
  const iovec to{reinterpret_cast<void*>(offer.address + cell_of(options_.self)), sizeof mark};
  if (::process_vm_writev(peer.pid(), &from, 1, &to, 1, 0) != sizeof mark) {
    return fmt::format("cma: writing the memory of process {}: {}; use NZCL_TRANSPORT=shm", peer.pid(),
                       error_text(errno));
  }
  if (!segment::holds(memory, cell_of(options_.self), mark))
    return fmt::format("cma: what was written to process {} did not arrive there; use NZCL_TRANSPORT=shm",
                       peer.pid());
  return {};
}

}  // namespace nzcl::verbs::cma
