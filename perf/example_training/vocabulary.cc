#include "perf/example_training/vocabulary.h"

#include <algorithm>
#include <stdexcept>

namespace train {
namespace {

constexpr std::size_t kMaxParagraph =
    1000;  // words; a longer paragraph is cut, as there may be no blank lines
constexpr std::size_t kHeldOutEvery = 200;  // paragraphs

/// Calls on_word for each word and on_line at each line's end.
template <typename OnWord, typename OnLine>
void split(std::string_view words, OnWord on_word, OnLine on_line) {
  while (!words.empty()) {
    const std::size_t end = std::min(words.find_first_of(" \n"), words.size());
    if (end > 0) on_word(words.substr(0, end));
    const bool last = end == words.size();
    if (last || words[end] == '\n') on_line();
    words.remove_prefix(last ? end : end + 1);
  }
}

}  // namespace

Vocabulary::Vocabulary(std::string_view words, std::uint64_t min_count) {
  std::unordered_map<std::string_view, std::uint64_t> seen;
  split(
      words, [&](std::string_view word) { ++seen[word]; }, [] {});

  std::vector<std::pair<std::string_view, std::uint64_t>> known;
  for (const auto& entry : seen)
    if (entry.second >= min_count) known.push_back(entry);
  if (known.size() < 2)
    throw std::runtime_error("the text has fewer than two words that occur " + std::to_string(min_count) +
                             " times; give a longer text or a smaller --min-count");
  std::sort(known.begin(), known.end(), [](const auto& a, const auto& b) {
    return a.second != b.second ? a.second > b.second : a.first < b.first;
  });

  words_.reserve(known.size());  // ids_ points into it
  for (const auto& [word, count] : known) {
    words_.emplace_back(word);
    counts_.push_back(count);
    total_ += count;
    ids_.emplace(words_.back(), static_cast<WordId>(words_.size() - 1));
  }
}

std::optional<WordId> Vocabulary::find(std::string_view word) const {
  const auto found = ids_.find(word);
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

std::span<const WordId> Corpus::paragraph(std::size_t p) const {
  const std::size_t begin = p == 0 ? 0 : ends[p - 1];
  return std::span(words).subspan(begin, ends[p] - begin);
}

void Corpus::add(std::span<const WordId> paragraph) {
  words.insert(words.end(), paragraph.begin(), paragraph.end());
  ends.push_back(words.size());
}

Corpus encode(std::string_view words, const Vocabulary& vocabulary) {
  Corpus corpus;
  std::vector<WordId> paragraph;
  const auto finish = [&] {
    if (paragraph.size() > 1) corpus.add(paragraph);  // a single word has no neighbours to learn from
    paragraph.clear();
  };
  const auto add = [&](std::string_view word) {
    if (const auto id = vocabulary.find(word)) paragraph.push_back(*id);
    if (paragraph.size() == kMaxParagraph) finish();
  };
  split(words, add, finish);
  return corpus;
}

Shards deal(const Corpus& corpus, int rank, int size) {
  Shards shards;
  for (std::size_t p = 0; p < corpus.paragraphs(); ++p) {
    if (p % kHeldOutEvery == 0)
      shards.held_out.add(corpus.paragraph(p));
    else if (p % static_cast<std::size_t>(size) == static_cast<std::size_t>(rank))
      shards.mine.add(corpus.paragraph(p));
  }
  return shards;
}

}  // namespace train
