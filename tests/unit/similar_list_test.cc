// Lists of strings that are much like each other, in few bytes.
#include "runtime/bootstrap/similar_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <rapidcheck/gtest.h>

#include "nzcl/error.h"
#include "runtime/bootstrap/numbers.h"

namespace nzcl::bootstrap {
namespace {

using testing::HasSubstr;
using Strings = std::vector<std::string>;

constexpr std::size_t kMany = 100, kMuch = 1 << 20;

TEST(SimilarList, ComesBack) {
  const std::vector<Strings> lists{{},
                                   {""},
                                   {"", "", ""},
                                   {"a", "a"},
                                   {"ab", "a", "", "b"},
                                   {"", "b", "b", ""},
                                   {"aa", "aaa", "aaaa", "aa"},
                                   {"abcdefgh", "abXdefgh", "XXXdefXX", "XYXdefXY", "abcdefgh"},
                                   {std::string("\0x", 2), "x", std::string(200, '\xff')}};
  for (const Strings& list : lists) EXPECT_EQ(decode_similar(encode_similar(list), kMany, kMuch), list);
}

RC_GTEST_PROP(SimilarList, ComesBackWhateverItIs, ()) {
  const auto letters = rc::gen::container<std::string>(rc::gen::element('a', 'b'));
  const auto list = *rc::gen::container<Strings>(letters);
  RC_ASSERT(decode_similar(encode_similar(list), list.size(), kMuch) == list);
}

TEST(SimilarList, WhatIsAlikeIsThereOnce) {
  const std::string end(1000, 'x');
  EXPECT_LT(encode_similar(Strings(kMany, end)).size(), 1010u);
  const Strings numbers{end + "1" + end, end + "2" + end, end + "13" + end, end};
  EXPECT_LT(encode_similar(numbers).size(), 2050u);
  Strings places(2, std::string(100, 'x'));
  places[1][10] = places[1][50] = places[1][90] = 'y';
  EXPECT_LT(encode_similar(places).size(), 100 + 20u);
}

TEST(SimilarList, ACopyOfAWriterGoesOnOnItsOwn) {
  SimilarWriter writer;
  writer.add("abc");
  writer.add("abc");
  SimilarWriter other = writer;
  writer.add("abc");
  other.add("abd");
  EXPECT_EQ(decode_similar(std::move(writer).finish(), kMany, kMuch), (Strings{"abc", "abc", "abc"}));
  EXPECT_EQ(decode_similar(std::move(other).finish(), kMany, kMuch), (Strings{"abc", "abc", "abd"}));
}

std::string list_of(const std::vector<std::uint64_t>& numbers, const std::string& end = "") {
  std::string text;
  for (const std::uint64_t number : numbers) put_number(text, number);
  return text + end;
}

std::string refusal(const std::string& text, std::size_t strings = kMany, std::size_t bytes = 1000) {
  try {
    decode_similar(text, strings, bytes);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::mismatch);
    return e.what();
  }
  return {};
}

TEST(SimilarList, WhatNobodyWroteIsRefused) {
  const std::string ab = list_of({2 * 2, 0, 0}, "ab");
  EXPECT_EQ(refusal(ab), "");
  EXPECT_THAT(refusal(list_of({2 * 3, 1, 0}, "ab")), HasSubstr("repeats more than there is"));
  EXPECT_THAT(refusal(ab + list_of({2 * 3, 2, 1}, "c")), HasSubstr("repeats more than there is"));
  EXPECT_THAT(refusal(ab + list_of({2 * 1, 1, 1})), HasSubstr("two ends that do not fit"));
  EXPECT_EQ(refusal(ab + list_of({2 * 3, 1, 1}, "c")), "");
  EXPECT_THAT(refusal(list_of({2 * 2, 0, 0}, "a")), HasSubstr("ends too early"));
  EXPECT_THAT(refusal(list_of({2 * 2})), HasSubstr("a number that ends too early"));
  EXPECT_THAT(refusal("\xff\xff\xff\xff\xff\xff"), HasSubstr("too large"));
}

TEST(SimilarList, ChangesThatNobodyMadeAreRefused) {
  const std::string ab = list_of({2 * 2, 0, 0}, "ab");
  EXPECT_EQ(decode_similar(ab + list_of({4 + 3, 1, 1}, "c"), kMany, kMuch), (Strings{"ab", "ac"}));
  EXPECT_EQ(decode_similar(ab + list_of({3}), kMany, kMuch), (Strings{"ab", "ab"}));
  EXPECT_THAT(refusal(ab + list_of({4 + 3, 3, 1}, "c")), HasSubstr("repeats more than there is"));
  EXPECT_THAT(refusal(ab + list_of({4 + 3, 1, 2}, "cd")), HasSubstr("a change that does not fit"));
  EXPECT_THAT(refusal(ab + list_of({4 + 3, 1, 0})), HasSubstr("a change that does not fit"));
  EXPECT_THAT(refusal(ab + list_of({4 + 3, 0, 2}, "c")), HasSubstr("ends too early"));
  EXPECT_THAT(refusal(ab + list_of({4 * (1ull << 32) + 3})), HasSubstr("a number that ends too early"));
}

TEST(SimilarList, FewBytesDoNotBecomeMany) {
  const std::string hundred = encode_similar(Strings{std::string(100, 'x')});
  EXPECT_EQ(refusal(hundred + list_of({4 * 9 + 1})), "");
  EXPECT_THAT(refusal(hundred + list_of({4 * 10 + 1})), HasSubstr("more bytes than are allowed"));
  EXPECT_THAT(refusal(hundred + list_of({4 * 9 + 1, 3})), HasSubstr("more bytes than are allowed"));
  EXPECT_THAT(refusal(list_of({2 * 1001})), HasSubstr("more bytes than are allowed"));
  EXPECT_THAT(refusal(list_of({4 * 101 + 1})), HasSubstr("more strings than are allowed"));
  EXPECT_THAT(refusal(list_of({4 * (1ull << 32) + 1})), HasSubstr("more strings than are allowed"));
}

}  // namespace
}  // namespace nzcl::bootstrap
