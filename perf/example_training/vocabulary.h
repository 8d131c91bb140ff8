// Which words the model knows, and the text as their numbers.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace train {

using WordId = std::uint32_t;  // row of the embedding tables

/// Words that occur at least min_count times, most frequent first; equally frequent ones in alphabetical
/// order, so that all ranks number them alike. Immutable.
class Vocabulary {
 public:
  /// `words` as plain_words() makes them. Throws std::runtime_error if fewer than two words are frequent
  /// enough.
  Vocabulary(std::string_view words, std::uint64_t min_count);

  std::size_t size() const { return words_.size(); }
  const std::string& word(WordId id) const { return words_[id]; }
  std::span<const std::uint64_t> counts() const { return counts_; }
  std::uint64_t total() const { return total_; }  ///< sum of counts
  std::optional<WordId> find(std::string_view word) const;

 private:
  std::vector<std::string> words_;
  std::vector<std::uint64_t> counts_;
  std::unordered_map<std::string_view, WordId> ids_;  // keys point into words_
  std::uint64_t total_ = 0;

 public:
  Vocabulary(const Vocabulary&) = delete;
  Vocabulary& operator=(const Vocabulary&) = delete;
};

/// Paragraphs of word numbers, one behind the other.
struct Corpus {
  std::vector<WordId> words;
  std::vector<std::size_t> ends;  // paragraph p: from ends[p-1] (or 0) up to ends[p]

  std::size_t paragraphs() const { return ends.size(); }
  std::span<const WordId> paragraph(std::size_t p) const;
  void add(std::span<const WordId> paragraph);
};

/// Unknown words are left out, and a window reaches across them.
Corpus encode(std::string_view words, const Vocabulary& vocabulary);

/// One rank's part of the text, and the part that nobody trains on.
struct Shards {
  Corpus mine;
  Corpus held_out;
};

/// Paragraphs are dealt out like cards, so that every rank sees all parts of the text; every 200th is held
/// out.
Shards deal(const Corpus& corpus, int rank, int size);

}  // namespace train
