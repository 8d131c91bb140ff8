#include "perf/peers/sparcml.h"

#include <mpi.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

namespace perf::peers {
namespace {

// The tag says in which form a vector travels. What is gathered has a tag of its own.
constexpr int kSparse = 0, kDense = 1, kGathered = 2;
// Lengths are in words of 32 bits: an element is one of them, a pair two.
constexpr std::size_t kPairWords = 2;

const MPI_Comm kRanks = MPI_COMM_WORLD;

int own_rank() {
  int rank = 0;
  MPI_Comm_rank(kRanks, &rank);
  return rank;
}
int number_of_ranks() {
  int ranks = 1;
  MPI_Comm_size(kRanks, &ranks);
  return ranks;
}

const void* data_of(const Vector& v) {
  return v.dense() ? static_cast<const void*>(v.values.data()) : v.pairs.data();
}
int words_of(const Vector& v) {
  return static_cast<int>(v.dense() ? v.values.size() : v.pairs.size() * kPairWords);
}
int tag_of(const Vector& v) { return v.dense() ? kDense : kSparse; }

Vector received_in(const void* memory, const MPI_Status& status) {
  int words = 0;
  MPI_Get_count(&status, MPI_UINT32_T, &words);
  const auto n = static_cast<std::size_t>(words);
  if (status.MPI_TAG == kDense) return {.pairs = {}, .values = {static_cast<const float*>(memory), n}};
  return {.pairs = {static_cast<const Pair*>(memory), n / kPairWords}, .values = {}};
}

void add_to(float* dense, std::span<const float> values) {
  for (std::size_t i = 0; i < values.size(); ++i) dense[i] += values[i];
}

}  // namespace

/// What goes to other ranks and comes from them, by step. Step 0 is not used: that would be the own rank.
struct SparCml::Requests {
  explicit Requests(std::size_t ranks) : sends(ranks), receives(ranks), statuses(ranks) {}
  std::vector<MPI_Request> sends, receives;
  std::vector<MPI_Status> statuses;  // of the receives
};

SparCml::SparCml(std::uint32_t elements)
    : elements_(elements),
      rank_(own_rank()),
      ranks_(number_of_ranks()),
      sum_(elements),
      incoming_(elements),
      spare_(elements),
      received_(std::size_t{elements} + 2 * static_cast<std::size_t>(ranks_)),
      merged_(elements),
      result_(elements),
      room_((elements / static_cast<unsigned>(ranks_) + 2) & ~std::size_t{1}),
      parts_(static_cast<std::size_t>(ranks_)),
      streams_(parts_.size()),
      requests_(std::make_unique<Requests>(parts_.size())),
      counts_(parts_.size()),
      places_(parts_.size()) {}

SparCml::~SparCml() = default;

std::uint64_t SparCml::take_sent_bytes() { return std::exchange(sent_, 0); }

std::uint32_t SparCml::first_of(int owner) const {
  return static_cast<std::uint32_t>(std::uint64_t{elements_} * static_cast<unsigned>(owner) /
                                    static_cast<unsigned>(ranks_));
}

// Recursive doubling.

void SparCml::send(const Vector& vector, int to) {
  MPI_Send(data_of(vector), words_of(vector), MPI_UINT32_T, to, tag_of(vector), kRanks);
  sent_ += static_cast<std::uint64_t>(words_of(vector)) * 4;
}

Vector SparCml::receive(int from) {
  MPI_Status status;
  MPI_Recv(incoming_.values(), static_cast<int>(elements_), MPI_UINT32_T, from, MPI_ANY_TAG, kRanks, &status);
  return received_in(incoming_.values(), status);
}

Vector SparCml::exchange(const Vector& vector, int partner) {
  MPI_Status status;
  MPI_Sendrecv(data_of(vector), words_of(vector), MPI_UINT32_T, partner, tag_of(vector), incoming_.values(),
               static_cast<int>(elements_), MPI_UINT32_T, partner, MPI_ANY_TAG, kRanks, &status);
  sent_ += static_cast<std::uint64_t>(words_of(vector)) * 4;
  return received_in(incoming_.values(), status);
}

/// The result is in sum_. `incoming` is in incoming_; `sum` is in sum_ or, if it is sparse, may be the
/// caller's.
Vector SparCml::add(const Vector& sum, const Vector& incoming) {
  if (!sum.dense() && !incoming.dense()) {
    if (sum.pairs.size() + incoming.pairs.size() <= most_pairs(elements_)) {
      const std::size_t pairs = merge(sum.pairs, incoming.pairs, spare_.pairs());
      std::swap(sum_, spare_);
      return {.pairs = {sum_.pairs(), pairs}, .values = {}};
    }
    Stream both[] = {sum.pairs, incoming.pairs};
    sum_densely(both, {spare_.values(), elements_});
    std::swap(sum_, spare_);
  } else if (sum.dense()) {
    add_to(sum_.values(), incoming.pairs);
    add_to(sum_.values(), incoming.values);
  } else {
    add_to(incoming_.values(), sum.pairs);
    std::swap(sum_, incoming_);
  }
  return {.pairs = {}, .values = {sum_.values(), elements_}};
}

Vector SparCml::recursive_double(Stream own) {
  Vector sum{.pairs = own, .values = {}};
  if (own.size() > most_pairs(elements_)) {
    sum_densely({&own, 1}, {sum_.values(), elements_});
    sum = {.pairs = {}, .values = {sum_.values(), elements_}};
  }
  const int doubling = static_cast<int>(std::bit_floor(static_cast<unsigned>(ranks_)));
  if (rank_ >= doubling) {
    send(sum, rank_ - doubling);
    return receive(rank_ - doubling);
  }
  const bool has_partner_beyond = rank_ + doubling < ranks_;
  if (has_partner_beyond) sum = add(sum, receive(rank_ + doubling));
  for (int distance = 1; distance < doubling; distance *= 2) {
    sum = add(sum, exchange(sum, rank_ ^ distance));
  }
  if (has_partner_beyond) send(sum, rank_ + doubling);
  return sum;
}

// Split and allgather.

void SparCml::split(Stream own) {
  for (int step = 1; step < ranks_; ++step) {
    const int from = (rank_ + step) % ranks_;
    MPI_Irecv(received_.values() + room_ * static_cast<std::size_t>(from), static_cast<int>(range_of(rank_)),
              MPI_UINT32_T, from, MPI_ANY_TAG, kRanks, &requests_->receives[static_cast<std::size_t>(step)]);
  }
  for (int step = 1; step < ranks_; ++step) {
    const int to = (rank_ + ranks_ - step) % ranks_;
    const std::uint32_t first = first_of(to), range = range_of(to);
    Vector part{.pairs = cut(own, first, first + range), .values = {}};
    if (part.pairs.size() > most_pairs(range)) {
      const std::span<float> dense(merged_.values() + first, range);  // free until all has been sent
      sum_densely({&part.pairs, 1}, dense, first);
      part = {.pairs = {}, .values = dense};
    }
    MPI_Isend(data_of(part), words_of(part), MPI_UINT32_T, to, tag_of(part), kRanks,
              &requests_->sends[static_cast<std::size_t>(step)]);
    sent_ += static_cast<std::uint64_t>(words_of(part)) * 4;
  }
  MPI_Waitall(ranks_ - 1, requests_->receives.data() + 1, requests_->statuses.data() + 1);
  for (int step = 1; step < ranks_; ++step) {
    const auto from = static_cast<std::size_t>((rank_ + step) % ranks_);
    parts_[from] =
        received_in(received_.values() + room_ * from, requests_->statuses[static_cast<std::size_t>(step)]);
  }
  parts_[static_cast<std::size_t>(rank_)] = {.pairs = cut(own, first_of(rank_), first_of(rank_ + 1)),
                                             .values = {}};
  MPI_Waitall(ranks_ - 1, requests_->sends.data() + 1, MPI_STATUSES_IGNORE);
}

bool SparCml::parts_are_longer_than_dense() const {
  std::size_t pairs = 0;
  for (const Vector& part : parts_) {
    if (part.dense()) return true;
    pairs += part.pairs.size();
  }
  return pairs > most_pairs(range_of(rank_));
}

void SparCml::add_parts_densely() {
  const auto range = own_range();
  std::transform(parts_.begin(), parts_.end(), streams_.begin(),
                 [](const Vector& part) { return part.pairs; });
  sum_densely(streams_, range, first_of(rank_));
  for (const Vector& part : parts_) add_to(range.data(), part.values);
}

Stream SparCml::merge_parts() {
  std::transform(parts_.begin(), parts_.end(), streams_.begin(),
                 [](const Vector& part) { return part.pairs; });
  return sum_of(streams_, merged_.pairs(), spare_.pairs());
}

/// Each rank sends its part to every other, because with few ranks that is faster than a library's allgather,
/// which passes parts on. `mine` is this rank's part, and may be in its place already.
void SparCml::gather(const void* mine) {
  const auto rank = static_cast<std::size_t>(rank_);
  for (int step = 1; step < ranks_; ++step) {
    const auto from = static_cast<std::size_t>((rank_ + step) % ranks_);
    MPI_Irecv(result_.values() + places_[from], counts_[from], MPI_UINT32_T, static_cast<int>(from),
              kGathered, kRanks, &requests_->receives[static_cast<std::size_t>(step)]);
  }
  for (int step = 1; step < ranks_; ++step) {
    MPI_Isend(mine, counts_[rank], MPI_UINT32_T, (rank_ + ranks_ - step) % ranks_, kGathered, kRanks,
              &requests_->sends[static_cast<std::size_t>(step)]);
    sent_ += std::uint64_t{4} * static_cast<unsigned>(counts_[rank]);
  }
  float* const place = result_.values() + places_[rank];
  if (mine != place) std::memcpy(place, mine, static_cast<std::size_t>(counts_[rank]) * sizeof(float));
  MPI_Waitall(ranks_ - 1, requests_->receives.data() + 1, MPI_STATUSES_IGNORE);
  MPI_Waitall(ranks_ - 1, requests_->sends.data() + 1, MPI_STATUSES_IGNORE);
}

/// All ranks have their range in result_.
Vector SparCml::gather_dense() {
  for (int r = 0; r < ranks_; ++r) {
    counts_[static_cast<std::size_t>(r)] = static_cast<int>(range_of(r));
    places_[static_cast<std::size_t>(r)] = static_cast<int>(first_of(r));
  }
  gather(own_range().data());
  return {.pairs = {}, .values = {result_.values(), elements_}};
}

/// Fills counts_ with all ranks' numbers of pairs, and returns their sum.
std::size_t SparCml::gather_counts(std::size_t mine) {
  const int own = static_cast<int>(mine);
  MPI_Allgather(&own, 1, MPI_INT, counts_.data(), 1, MPI_INT, kRanks);
  std::size_t pairs = 0;
  for (const int count : counts_) pairs += static_cast<std::size_t>(count);
  return pairs;
}

/// counts_ has all ranks' numbers of pairs, which together are no more than most_pairs().
Vector SparCml::gather_pairs(Stream mine) {
  int words = 0;
  for (std::size_t r = 0; r < counts_.size(); ++r) {
    places_[r] = words;
    counts_[r] *= static_cast<int>(kPairWords);
    words += counts_[r];
  }
  gather(mine.data());
  return {.pairs = {result_.pairs(), static_cast<std::size_t>(words) / kPairWords}, .values = {}};
}

Vector SparCml::split_allgather(Stream own) {
  split(own);
  const bool dense = parts_are_longer_than_dense();
  Stream mine;
  if (dense) {
    add_parts_densely();
  } else {
    mine = merge_parts();
  }
  const auto range = own_range();
  const std::size_t pairs =
      dense ? range.size() - static_cast<std::size_t>(std::count(range.begin(), range.end(), 0.0f))
            : mine.size();
  if (gather_counts(pairs) > most_pairs(elements_)) {
    if (!dense) sum_densely({&mine, 1}, range, first_of(rank_));
    return gather_dense();
  }
  if (dense) mine = {merged_.pairs(), collect(range, first_of(rank_), merged_.pairs())};
  return gather_pairs(mine);
}

Vector SparCml::dense_split_allgather(Stream own) {
  split(own);
  add_parts_densely();
  return gather_dense();
}

}  // namespace perf::peers
