// Bandwidth of a bare loop of libfabric's fi_write or fi_writedata, timed as nzcl_write_bw times nzcl: from
// one buffer to one buffer of another process of this host, from the first post until the other side has
// answered the last write.
//
// usage: fi_write_bw PROVIDER BYTES ITERATIONS DEPTH write|writedata [TURNS]
// Prints MiB/s. PROVIDER and the hints are those of verbs/ofi/device.cc. TURNS is a number of turns of an
// empty loop before every write; it shows what a sender loses that does a little more work per write.
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>

#include "perf/pause.h"

namespace {

constexpr std::size_t kPage = 4096;

enum Word : std::uint64_t { data, last, landed };  // what the remote completion data says

void check(long code, const char* what) {
  if (code >= 0) return;
  std::fprintf(stderr, "%s: %s\n", what, fi_strerror(static_cast<int>(-code)));
  std::_Exit(1);
}

/// One process: its endpoint, its registered buffer, and the address of the other's buffer.
class Side {
 public:
  Side(const std::string& provider, std::size_t bytes, int depth, int other) : other_(other) {
    const std::size_t whole = (bytes + kPage - 1) / kPage * kPage;
    buffer_ = {static_cast<unsigned char*>(std::aligned_alloc(kPage, whole)), bytes};
    fi_info* hints = fi_allocinfo();
    hints->caps = FI_RMA | FI_WRITE | FI_REMOTE_WRITE;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    hints->domain_attr->threading = FI_THREAD_SAFE;
    hints->domain_attr->av_type = FI_AV_TABLE;
    hints->fabric_attr->prov_name = ::strdup(provider.c_str());
    fi_info* info = nullptr;
    check(fi_getinfo(FI_VERSION(1, 17), nullptr, nullptr, 0, hints, &info), provider.c_str());
    check(fi_fabric(info->fabric_attr, &fabric_, nullptr), "fi_fabric");
    check(fi_domain(fabric_, info, &domain_, nullptr), "fi_domain");
    fi_cq_attr cq{};
    cq.format = FI_CQ_FORMAT_DATA;
    cq.size = static_cast<std::size_t>(8 * depth);
    // The same choice as nzcl's. A descriptor to sleep on changes how tcp makes progress, and shm has none.
    cq.wait_obj = provider.starts_with("tcp") ? FI_WAIT_FD : provider == "net" ? FI_WAIT_SET : FI_WAIT_NONE;
    if (provider == "net") {
      fi_wait_attr wait{.wait_obj = FI_WAIT_FD, .flags = 0};
      check(fi_wait_open(fabric_, &wait, &cq.wait_set), "fi_wait_open");
    }
    check(fi_cq_open(domain_, &cq, &queue_, nullptr), "fi_cq_open");
    fi_av_attr av{};
    av.type = FI_AV_TABLE;
    check(fi_av_open(domain_, &av, &addresses_, nullptr), "fi_av_open");
    check(fi_endpoint(domain_, info, &endpoint_, nullptr), "fi_endpoint");
    check(fi_ep_bind(endpoint_, &addresses_->fid, 0), "fi_ep_bind");
    check(fi_ep_bind(endpoint_, &queue_->fid, FI_TRANSMIT | FI_RECV), "fi_ep_bind");
    check(fi_enable(endpoint_), "fi_enable");
    const std::uint64_t own_key = (info->domain_attr->mr_mode & FI_MR_PROV_KEY) == 0 ? 1 : 0;
    check(fi_mr_reg(domain_, buffer_.data(), bytes, FI_WRITE | FI_REMOTE_WRITE, 0, own_key, 0, &region_,
                    nullptr),
          "fi_mr_reg");
    meet((info->domain_attr->mr_mode & FI_MR_VIRT_ADDR) != 0);
    fi_freeinfo(hints), fi_freeinfo(info);
  }
  ~Side() {
    for (fid* object :
         {&endpoint_->fid, &region_->fid, &addresses_->fid, &queue_->fid, &domain_->fid, &fabric_->fid})
      fi_close(object);
  }

  std::span<unsigned char> buffer() { return buffer_; }
  /// Returns when the other side has called it, too.
  void barrier() {
    char byte = 0;
    if (::write(other_, &byte, 1) != 1 || ::read(other_, &byte, 1) != 1)
      check(-FI_ECONNRESET, "the other side");
  }
  /// Returns false if the provider cannot take the write now.
  bool write(std::size_t bytes, bool with_data, Word word) {
    void* descriptor = fi_mr_desc(region_);
    const auto code = with_data ? fi_writedata(endpoint_, buffer_.data(), bytes, descriptor, word, peer_,
                                               there_.address, there_.key, nullptr)
                                : fi_write(endpoint_, buffer_.data(), bytes, descriptor, peer_,
                                           there_.address, there_.key, nullptr);
    if (code != -FI_EAGAIN) check(code, "write");
    return code == 0;
  }
  /// Polls once. Like nzcl_write_bw it pauses after a poll in vain and gives way after 64 of them, because
  /// the two sides share the lock of shm and may share a core.
  void progress() {
    std::array<fi_cq_data_entry, 64> entries;
    const auto n = fi_cq_read(queue_, entries.data(), entries.size());
    if (n == -FI_EAGAIN) {
      perf::pause();
      if (++empty_ % 64 == 0) ::sched_yield();
      return;
    }
    check(n, "fi_cq_read");
    empty_ = 0;
    for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
      if ((entries[i].flags & FI_REMOTE_CQ_DATA) == 0)
        ++written;
      else if (entries[i].data != data)
        heard = true;
    }
  }

  std::uint64_t written = 0;  // completions of own writes
  bool heard = false;         // the last write of the other side has come, or its answer

 private:
  struct There {
    std::uint64_t address = 0, key = 0;
    std::array<char, 256> name{};
  };

  void meet(bool virtual_addresses) {
    There here;
    here.address = virtual_addresses ? reinterpret_cast<std::uint64_t>(buffer_.data()) : 0;
    here.key = fi_mr_key(region_);
    std::size_t length = here.name.size();
    check(fi_getname(&endpoint_->fid, here.name.data(), &length), "fi_getname");
    if (::write(other_, &here, sizeof here) != sizeof here ||
        ::recv(other_, &there_, sizeof there_, MSG_WAITALL) != sizeof there_)
      check(-FI_ECONNRESET, "the other side");
    if (fi_av_insert(addresses_, there_.name.data(), 1, &peer_, 0, nullptr) != 1)
      check(-FI_EINVAL, "fi_av_insert");
  }

  const int other_;
  std::span<unsigned char> buffer_;  // of whole pages, as in nzcl_write_bw; never freed
  fid_fabric* fabric_ = nullptr;
  fid_domain* domain_ = nullptr;
  fid_cq* queue_ = nullptr;
  fid_av* addresses_ = nullptr;
  fid_ep* endpoint_ = nullptr;
  fid_mr* region_ = nullptr;
  There there_;
  fi_addr_t peer_ = FI_ADDR_UNSPEC;
  unsigned empty_ = 0;
};

double client(Side& side, std::size_t bytes, std::uint64_t count, std::uint64_t depth, bool with_data,
              unsigned long turns) {
  const auto begin = std::chrono::steady_clock::now();
  for (std::uint64_t posted = 0; !side.heard || side.written < count;) {
    while (posted < count && posted - side.written < depth) {
      for (unsigned long turn = 0; turn < turns; ++turn) asm volatile("");
      const bool is_last = posted + 1 == count;
      if (!side.write(bytes, with_data || is_last, is_last ? last : data)) break;
      ++posted;
    }
    side.progress();
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void server(Side& side) {
  while (!side.heard) side.progress();
  while (!side.write(1, true, landed)) side.progress();
  while (side.written == 0) side.progress();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6 && argc != 7) {
    std::fprintf(stderr, "usage: fi_write_bw PROVIDER BYTES ITERATIONS DEPTH write|writedata [TURNS]\n");
    return 2;
  }
  const std::size_t bytes = std::strtoull(argv[2], nullptr, 10), count = std::strtoull(argv[3], nullptr, 10);
  const int depth = std::atoi(argv[4]);
  const unsigned long turns = argc == 7 ? std::strtoul(argv[6], nullptr, 10) : 0;
  std::array<int, 2> pair{};
  if (::socketpair(AF_UNIX, SOCK_STREAM, 0, pair.data()) != 0) return 1;
  const pid_t child = ::fork();
  const bool serves = child == 0;
  ::close(pair[serves ? 0 : 1]);
  bool good = true;
  {
    Side side(argv[1], bytes, depth, pair[serves ? 1 : 0]);
    std::memset(side.buffer().data(), serves ? 0 : 0x5a, bytes);
    side.barrier();
    if (serves) {
      server(side);
      for (const unsigned char byte : side.buffer()) good &= byte == 0x5a;
    } else {
      const double seconds = client(side, bytes, count, static_cast<std::uint64_t>(depth),
                                    std::strcmp(argv[5], "writedata") == 0, turns);
      std::printf("%.2f\n", static_cast<double>(bytes) * static_cast<double>(count) / seconds / (1 << 20));
    }
    side.barrier();  // a side must not close what the other still needs
  }
  if (serves) return good ? 0 : 1;
  int status = 0;
  ::waitpid(child, &status, 0);
  if (status != 0) std::fprintf(stderr, "the bytes did not land\n");
  return status == 0 ? 0 : 1;
}
