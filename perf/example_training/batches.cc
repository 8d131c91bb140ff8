#include "perf/example_training/batches.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>

namespace train {

Example Batch::example(std::size_t i) const {
  const std::size_t begin = i == 0 ? 0 : context_ends[i - 1];
  const std::size_t drawn = negatives.size() / centres.size();
  return {centres[i], std::span(contexts).subspan(begin, context_ends[i] - begin),
          std::span(negatives).subspan(i * drawn, drawn)};
}

void Batch::clear() {
  centres.clear();
  contexts.clear();
  context_ends.clear();
  negatives.clear();
}

BatchStream::BatchStream(const Corpus& shard, std::span<const float> keep, const AliasTable& negatives,
                         const BatchSettings& settings, std::uint64_t seed)
    : shard_(shard), keep_(keep), negatives_(negatives), settings_(settings), random_(seed) {
  if (shard.paragraphs() == 0)
    throw std::runtime_error(
        "the text is too short: a rank got no paragraph; use fewer ranks or a longer text");
  order_.resize(shard.paragraphs());
  std::iota(order_.begin(), order_.end(), 0);
  shuffle();
}

const Batch& BatchStream::next() {
  batch_.clear();
  while (batch_.size() < settings_.words) {
    if (next_in_paragraph_ == paragraph_.size()) next_paragraph();
    if (next_in_paragraph_ < paragraph_.size()) add_centre(next_in_paragraph_++);
  }
  return batch_;
}

/// Takes the next paragraph. If fewer than two of its words are left it is dropped, and the caller asks
/// again.
void BatchStream::next_paragraph() {
  if (next_in_order_ == order_.size()) shuffle();
  paragraph_.clear();
  next_in_paragraph_ = 0;
  for (const WordId word : shard_.paragraph(order_[next_in_order_++]))
    if (random_.uniform() < keep_[word]) paragraph_.push_back(word);
  if (paragraph_.size() < 2) paragraph_.clear();
}

void BatchStream::shuffle() {
  for (std::size_t i = order_.size() - 1; i > 0; --i)
    std::swap(order_[i], order_[random_.below(static_cast<std::uint32_t>(i + 1))]);
  next_in_order_ = 0;
}

void BatchStream::add_centre(std::size_t at) {
  const std::size_t reach = 1 + random_.below(settings_.window);
  const std::size_t begin = at - std::min(at, reach);
  const std::size_t end = std::min(paragraph_.size(), at + reach + 1);
  batch_.centres.push_back(paragraph_[at]);
  for (std::size_t i = begin; i < end; ++i)
    if (i != at) batch_.contexts.push_back(paragraph_[i]);
  batch_.context_ends.push_back(batch_.contexts.size());
  for (std::uint32_t n = 0; n < settings_.negatives; ++n)
    batch_.negatives.push_back(negatives_.draw(random_));
}

}  // namespace train
