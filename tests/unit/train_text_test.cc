// nzcl_train: how a dictionary's markup becomes plain words.
#include "perf/example_training/text.h"

#include <gtest/gtest.h>

#include <string>

namespace train {
namespace {

TEST(TrainText, LowersLettersAndSeparatesAtEverythingElse) {
  EXPECT_EQ(plain_words("The Cat, the DOG;two-fold 1913 x2y"), "the cat the dog two fold\n");
}

TEST(TrainText, DropsSingleLetters) { EXPECT_EQ(plain_words("an author's n. a b cat I"), "an author cat\n"); }

TEST(TrainText, BlankLinesEndParagraphs) {
  EXPECT_EQ(plain_words("\n\none two\nthree\n \t \n\nfour five\n"), "one two three\nfour five\n");
}

TEST(TrainText, NothingFromNothing) {
  EXPECT_EQ(plain_words(""), "");
  EXPECT_EQ(plain_words(" \n\n 1 a [b] \\c\\ \n"), "");
}

TEST(TrainText, DropsTheHeadwordsPronunciation) {
  EXPECT_EQ(plain_words("Coal \\Co*al\\ (k[=o]l), noun. (Zool.) Burns"), "coal noun zool burns\n");
}

TEST(TrainText, KeepsParenthesesThatAreNoPronunciation) {
  EXPECT_EQ(plain_words("To cause (a liquid) to change"), "to cause liquid to change\n");
}

TEST(TrainText, DropsSourcesAndNestedEtymologies) {
  EXPECT_EQ(plain_words("Heir [F. h['e]r['e]ditaire.\n See {Heir}.] who inherits.\n [1913 Webster]"),
            "heir who inherits\n");
}

TEST(TrainText, AccentsInsideWordsKeepTheirLetters) {
  EXPECT_EQ(plain_words("[ae]ther caf['e] C[ae]sar soci['e]t['e]"), "aether cafe caesar societe\n");
}

TEST(TrainText, CrossReferencesKeepTheirWord) {
  EXPECT_EQ(plain_words("See {Black Bird}."), "see black bird\n");
}

TEST(TrainText, UnclosedMarkupDoesNotSwallowTheText) {
  const std::string tail = "word " + std::string(5000, '.') + " end";
  EXPECT_EQ(plain_words("path\\name " + tail), "path name word end\n");
  EXPECT_EQ(plain_words("array[index " + tail), "array index word end\n");
}

TEST(TrainText, MissingFilesAreNamed) {
  try {
    read_text("/nonexistent/text");
    FAIL() << "no error";
  } catch (const std::exception& error) {
    EXPECT_NE(std::string(error.what()).find("/nonexistent/text"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace train
