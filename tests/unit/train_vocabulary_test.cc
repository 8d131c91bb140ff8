// nzcl_train: how words get numbers, and how paragraphs are dealt to ranks.
#include "perf/example_training/vocabulary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <stdexcept>

namespace train {
namespace {

using testing::ElementsAre;

TEST(TrainVocabulary, FrequentFirstThenAlphabetical) {
  const Vocabulary vocabulary("bb aa cc\ncc dd\nee cc aa bb\n", 2);
  ASSERT_EQ(vocabulary.size(), 3u);
  EXPECT_EQ(vocabulary.word(0), "cc");
  EXPECT_EQ(vocabulary.word(1), "aa");
  EXPECT_EQ(vocabulary.word(2), "bb");
  EXPECT_THAT(vocabulary.counts(), ElementsAre(3, 2, 2));
  EXPECT_EQ(vocabulary.total(), 7u);
  EXPECT_EQ(vocabulary.find("bb"), 2u);
  EXPECT_EQ(vocabulary.find("dd"), std::nullopt);
}

TEST(TrainVocabulary, TooFewWordsSayWhatToDo) {
  try {
    const Vocabulary vocabulary("aa aa bb\n", 2);
    FAIL() << "no error";
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find("--min-count"), std::string::npos) << error.what();
  }
}

TEST(TrainVocabulary, EncodeLeavesOutUnknownWordsAndLonelyOnes) {
  const std::string words = "aa xx bb\naa\nbb aa\n";
  const Vocabulary vocabulary(words, 2);
  const Corpus corpus = encode(words, vocabulary);
  ASSERT_EQ(corpus.paragraphs(), 2u);
  EXPECT_THAT(corpus.paragraph(0), ElementsAre(0, 1));
  EXPECT_THAT(corpus.paragraph(1), ElementsAre(1, 0));
}

TEST(TrainVocabulary, EncodeCutsEndlessParagraphs) {
  std::string words;
  for (int i = 0; i < 1250; ++i) words += i == 0 ? "aa bb" : " aa bb";
  const Corpus corpus = encode(words, Vocabulary(words, 1));
  ASSERT_EQ(corpus.paragraphs(), 3u);
  EXPECT_EQ(corpus.paragraph(0).size(), 1000u);
  EXPECT_EQ(corpus.paragraph(2).size(), 500u);
}

class Deal : public testing::TestWithParam<int> {};

TEST_P(Deal, EveryParagraphHasOnePlace) {
  constexpr WordId kParagraphs = 1001;
  Corpus corpus;
  for (WordId p = 0; p < kParagraphs; ++p) corpus.add(std::vector<WordId>{p, p});

  std::map<WordId, int> times;
  for (int rank = 0; rank < GetParam(); ++rank) {
    const Shards shards = deal(corpus, rank, GetParam());
    EXPECT_EQ(shards.held_out.paragraphs(), 6u);
    for (std::size_t p = 0; p < shards.mine.paragraphs(); ++p) ++times[shards.mine.paragraph(p)[0]];
    EXPECT_NEAR(static_cast<double>(shards.mine.paragraphs()), 995.0 / GetParam(), 6);
    for (std::size_t p = 0; p < shards.held_out.paragraphs(); ++p)
      EXPECT_EQ(times.count(shards.held_out.paragraph(p)[0]), 0u);
  }
  EXPECT_EQ(times.size(), kParagraphs - 6);
  for (const auto& [paragraph, count] : times) EXPECT_EQ(count, 1) << "paragraph " << paragraph;
}

INSTANTIATE_TEST_SUITE_P(Ranks, Deal, testing::Values(1, 2, 3, 5, 8));

}  // namespace
}  // namespace train
