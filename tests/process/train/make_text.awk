# A text that nzcl_train can learn in seconds: paragraphs about 24 topics. Each topic has a pair of words of the program's
# list of related words and some words of its own. With -v shuffled=1 the same words stand in random order, so that there is
# nothing to learn.   usage: awk -v paragraphs=8000 [-v shuffled=1] -f make_text.awk
function letter(n) { return sprintf("%c", 97 + n) }

BEGIN {
  srand(1)
  topics = split("gold silver,north south,red yellow,oxygen hydrogen,king queen,february march,bird fish,latin greek," \
                 "ship vessel,wheat barley,father mother,verb noun,copper zinc,leg foot,sheep goat,church bishop," \
                 "sugar starch,army troops,eye ear,wine beer,sun moon,music melody,oak pine,acid alkali", pair, ",")
  for (p = 0; p < paragraphs; ++p) {
    topic = 1 + int(rand() * topics)
    line = ""
    for (w = 0; w < 14; ++w) {
      from = shuffled ? 1 + int(rand() * topics) : topic
      split(pair[from], two, " ")
      kind = rand()
      if (kind < 0.3) word = two[kind < 0.15 ? 1 : 2]
      else if (kind < 0.8) word = "own" letter(from) letter(int(rand() * 26))
      else word = "common" letter(int(rand() * 20))
      line = line word " "
    }
    print line "\n"
  }
}
