#include "runtime/comm/request/kept_request.h"

#include <cstring>
#include <type_traits>
#include <utility>

namespace nzcl::comm {
namespace {

std::size_t bytes_of(IndexSpan indices) {
  return indices.size() * (indices.type() == IndexType::int64 ? sizeof(std::int64_t) : sizeof(std::int32_t));
}

}  // namespace

std::shared_ptr<KeptRequest> KeptRequest::of(const Request& request) {
  return std::visit(
      [](const auto* r) -> std::shared_ptr<KeptRequest> {
        if constexpr (std::is_same_v<decltype(r), const CompressedRequest*>) {
          return nullptr;
        } else {
          return std::shared_ptr<KeptRequest>(new KeptRequest(*r));
        }
      },
      request);
}

KeptRequest::KeptRequest(AllreduceRequest request) : request_(request) {
  std::get<AllreduceRequest>(request_).bitmap = keep_words(request.bitmap);
}

KeptRequest::KeptRequest(SparseAllreduceRequest request) {
  const IndexSpan indices = request.indices;
  indices_.resize(bytes_of(indices));
  if (!indices_.empty()) std::memcpy(indices_.data(), indices.data(), indices_.size());
  request.indices = IndexSpan(indices_.data(), indices.size(), indices.type());
  request_ = std::move(request);
}

KeptRequest::KeptRequest(CollectiveRequest request) {
  counts_.assign(request.counts.begin(), request.counts.end());
  request.counts = counts_;
  request.bitmap = keep_words(request.bitmap);
  request_ = request;
}

std::span<const std::uint64_t> KeptRequest::keep_words(std::span<const std::uint64_t> words) {
  words_.assign(words.begin(), words.end());
  return words_;
}

Request KeptRequest::request() const {
  return std::visit([](const auto& r) -> Request { return &r; }, request_);
}

void KeptRequest::note_overwritten(std::span<std::byte> input, bool copy) {
  overwritten_ = true;
  if (!copy) return;
  input_ = input;
  copy_.assign(input.begin(), input.end());
}

void KeptRequest::restore_input() const {
  if (!copy_.empty()) std::memcpy(input_.data(), copy_.data(), copy_.size());
}

}  // namespace nzcl::comm
