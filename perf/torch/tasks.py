"""What perf/torch/train.py trains: a model, its data and its optimizer for each task."""

import gzip
import re
import struct

import torch
from torch import nn
from torch.nn import functional

FASHION = "/usr/share/datasets/fashion-mnist"  # Debian's dataset-fashion-mnist
DICTIONARY = "/usr/share/dictd/gcide.dict.dz"  # Debian's dict-gcide


class Task:
    """Draws batches by step, the same ones for any number of ranks. Subclasses have: model(), train_size, batch(indices) and
    test_parts(part, parts), which gives batches of one part of the test data."""

    global_batch = 64
    rates = {"sgd": 0.1, "adam": 1e-3}
    momentum = 0.9

    def share(self, seed, step, rank, size):
        """This rank's part of the batch of one step."""
        generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
        indices = torch.randint(self.train_size, (self.global_batch,), generator=generator)
        return self.batch(indices[rank * self.global_batch // size:(rank + 1) * self.global_batch // size])

    def optimizers(self, model, name):
        if name == "sgd":
            return [torch.optim.SGD(model.parameters(), lr=self.rates[name], momentum=self.momentum)]
        return [torch.optim.Adam(model.parameters(), lr=self.rates[name])]

    def loss(self, output, labels):
        return functional.cross_entropy(output, labels)

    def measure(self, model, part, parts):
        """Sums over a part of the test data: loss, right answers, answers."""
        sums = torch.zeros(3, dtype=torch.double)
        with torch.no_grad():
            for inputs, labels in self.test_parts(part, parts):
                output = model(inputs)
                count = labels.numel()
                sums += torch.tensor([self.loss(output, labels).item() * count, self.right(output, labels), count])
        return sums

    def right(self, output, labels):
        return (output.argmax(1) == labels).sum().item()


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 32, 3, padding=1), nn.Conv2d(32, 64, 3, padding=1)
        self.hidden, self.out = nn.Linear(64 * 7 * 7, 256), nn.Linear(256, 10)

    def forward(self, x):
        x = functional.max_pool2d(functional.relu(self.first(x)), 2)
        x = functional.max_pool2d(functional.relu(self.second(x)), 2)
        return self.out(functional.relu(self.hidden(x.flatten(1))))


class Fashion(Task):
    """Images of clothes, in ten classes: two convolutions and two fully connected layers."""

    rates = {"sgd": 0.02, "adam": 1e-3}

    def __init__(self, synthetic):
        if synthetic:  # small, because libtorch may have no fast library for matrix products
            generator = torch.Generator().manual_seed(1)
            self.train = torch.rand(128, 1, 28, 28, generator=generator), torch.arange(128) % 10
            self.test = self.train
            self.global_batch = 8
        else:
            self.train, self.test = self.read("train"), self.read("t10k")
        self.train_size = len(self.train[1])

    @staticmethod
    def read(name):
        def content(kind, header):
            with gzip.open(f"{FASHION}/{name}-{kind}-ubyte.gz") as file:
                return struct.unpack(f">{header}I", file.read(4 * header)), torch.frombuffer(bytearray(file.read()), dtype=torch.uint8)

        (_, count, height, width), pixels = content("images-idx3", 4)
        _, labels = content("labels-idx1", 2)
        images = pixels.view(count, 1, height, width).float().div_(255)
        return images.sub_(0.286).div_(0.353), labels.long()  # the mean and the standard deviation of all pixels

    def model(self):
        return Cnn()

    def batch(self, indices):
        return self.train[0][indices], self.train[1][indices]

    def test_parts(self, part, parts):
        images, labels = self.test
        for begin in range(part * 50, len(labels), parts * 50):
            yield images[begin:begin + 50], labels[begin:begin + 50]


def dictionary():
    with gzip.open(DICTIONARY) as file:
        return file.read().decode("utf-8", "replace")


class Lstm(nn.Module):
    def __init__(self, characters, width):
        super().__init__()
        self.embedding = nn.Embedding(characters, 32)
        self.lstm = nn.LSTM(32, width, batch_first=True)
        self.out = nn.Linear(width, characters)

    def forward(self, x):
        return self.out(self.lstm(self.embedding(x))[0]).transpose(1, 2)


class Characters(Task):
    """The next character of the dictionary's text: an LSTM whose recurrent matrix has 1 MiB."""

    global_batch = 32
    rates = {"sgd": 1.0, "adam": 3e-3}
    characters, length, width = 64, 32, 256

    def __init__(self, synthetic):
        if synthetic:
            self.global_batch, self.length, self.width = 8, 8, 64
        text = "to be or not to be, that is the question. " * 100 if synthetic else dictionary()
        text = re.sub(r"\s+", " ", text[:10_000_000])
        counts = {}
        for c in text:
            counts[c] = counts.get(c, 0) + 1
        kept = sorted(counts, key=counts.get, reverse=True)[:self.characters - 1]
        code = {c: i + 1 for i, c in enumerate(kept)}  # 0: any other character
        data = torch.tensor([code.get(c, 0) for c in text])
        test = min(100_000, len(data) // 5)
        self.train, self.test = data[:-test], data[-test:]
        self.train_size = len(self.train) - self.length - 1

    def model(self):
        return Lstm(self.characters, self.width)

    def windows(self, data, begins, length):
        windows = data[begins[:, None] + torch.arange(length + 1)]
        return windows[:, :-1], windows[:, 1:]

    def batch(self, indices):
        return self.windows(self.train, indices, self.length)

    def test_parts(self, part, parts):
        begins = torch.arange(0, len(self.test) - 129, 128)[part::parts]
        for some in begins.split(50):
            yield self.windows(self.test, some, 128)


class Bags(nn.Module):
    def __init__(self, words, width, classes):
        super().__init__()
        self.embedding = nn.EmbeddingBag(words, width, mode="mean", sparse=True)
        self.out = nn.Linear(width, classes)

    def forward(self, bags):
        return self.out(self.embedding(*bags))


class PartsOfSpeech(Task):
    """Whether an entry of the dictionary is a noun, an adjective, a transitive or an intransitive verb or an adverb, from the words
    of its definition: a large embedding, of which a step uses few rows."""

    global_batch = 256
    momentum = 0
    rates = {"sgd": 4.0, "adam": 1e-3}
    words, width = 50_000, 100
    classes = ["n", "a", "v. t", "v. i", "adv"]

    def __init__(self, synthetic):
        entries = self.synthetic() if synthetic else self.entries(dictionary())
        counts = {}
        for words, _ in entries:
            for w in words:
                counts[w] = counts.get(w, 0) + 1
        kept = sorted(counts, key=counts.get, reverse=True)[:self.words - 1]
        code = {w: i + 1 for i, w in enumerate(kept)}
        coded = [(torch.tensor([code.get(w, 0) for w in words]), label) for words, label in entries]
        order = torch.randperm(len(coded), generator=torch.Generator().manual_seed(1)).tolist()
        test = len(coded) // 10
        self.test, self.train = [coded[i] for i in order[:test]], [coded[i] for i in order[test:]]
        self.train_size = len(self.train)

    @staticmethod
    def synthetic():
        return [([f"word{i * j % 997}" for j in range(1, 20)], i % 5) for i in range(2000)]

    @classmethod
    def entries(cls, text):
        """The words of each definition and the number of its class. Entries begin in the first column: Head \\pronunciation\\, n. ..."""
        heads = list(re.finditer(r"^\S.*?\\[^\n\\]*\\,\s(n|a|v\. t|v\. i|adv)\.", text, re.MULTILINE))
        ends = [m.start() for m in heads[1:]] + [len(text)]
        found = []
        for head, end in zip(heads, ends):
            words = re.findall(r"[a-z]+", re.sub(r"\[[^\]]*\]", " ", text[head.end():end]).lower())[:100]
            if len(words) >= 3:
                found.append((words, cls.classes.index(head.group(1))))
        return found

    def model(self):
        return Bags(self.words, self.width, len(self.classes))

    def optimizers(self, model, name):
        if name == "sgd":
            return super().optimizers(model, name)
        return [torch.optim.SparseAdam(model.embedding.parameters(), lr=self.rates[name]),
                torch.optim.Adam(model.out.parameters(), lr=self.rates[name])]

    @staticmethod
    def bags(entries):
        lengths = torch.tensor([0] + [len(words) for words, _ in entries[:-1]])
        return (torch.cat([words for words, _ in entries]), lengths.cumsum(0)), torch.tensor([label for _, label in entries])

    def batch(self, indices):
        return self.bags([self.train[i] for i in indices.tolist()])

    def test_parts(self, part, parts):
        for begin in range(part * 500, len(self.test), parts * 500):
            yield self.bags(self.test[begin:begin + 500])


TASKS = {"fashion": Fashion, "char": Characters, "embedding": PartsOfSpeech}
