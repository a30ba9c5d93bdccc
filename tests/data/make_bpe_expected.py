#!/usr/bin/env python3
"""Writes tests/data/gpt2_bpe: what bpe_tokenizer_test.cpp compares with.

The input is a folder with GPT-2's vocab.json and merges.txt, the reference the package tokenizers of Hugging Face.
vocab.json and merges.txt are GPT-2's cut to the first merges; reduced.jsonl holds encodings with these, full.jsonl with
all of GPT-2's (the test reads those where $DDPTRAIN_GPT2 is a folder with the two files).
"""

import argparse
import json
import random
import unicodedata
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

BYTES = 256
END_OF_TEXT = "<|endoftext|>"
TEXTS = [
    "", " ", "\n", "a", "Hello world", "Hello, world!", " Hello", "hello  world", "The quick brown fox jumps.",
    "I'm you're he's we've they'll I'd can't IT'S 's 't 're", "'s's'll'LL", "0 1 12 123 1234567890 3.14159 1,000,000",
    "x=1;\n\tif (x) {\n\t\treturn x++;\n\t}\r\n", "   leading", "trailing   ", "a \n \n b", "\t\t\n\n  \r\n x",
    "na\u00efve caf\u00e9 \u00fcber stra\u00dfe", "e\u0301 combining", "\u4e2d\u6587\u5b57\u7b26 \u65e5\u672c\u8a9e",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440!", "\u0645\u0631\u062d\u0628\u0627 \u0661\u0662\u0663",
    "\u0928\u092e\u0938\u094d\u0924\u0947 \u096a\u0968", "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35",
    "x\u00b2 \u00bd \u2167 \u2460",
    "\U0001f642", " \U0001f642\U0001f642!", "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea",
    "\u00a0nbsp\u00a0\u00a0x", "\u0085next\u0085 line", "\u3000wide\u3000\u3000space",
    "\u2028\u2029\u202f\u205f\u1680x",
    "\u180e not a space \u180e", "\u200b\ufeff zero width", "\x00\x01\x1c\x1d\x1e\x1f\x7f", "\ufffd \U0010ffff",
    "\U00020000\U0001d7d8", END_OF_TEXT,
    f"one{END_OF_TEXT}two {END_OF_TEXT}{END_OF_TEXT} three", "<|endoftext|",
    "<|endoftext", "a" * 300, " " * 300 + "x", "ab" * 100, "\n" * 100,
]


def random_texts(count: int) -> list[str]:
    """Of characters that Unicode 14 knows, as PCRE2 10.42 does."""
    generator = random.Random(1)
    known = [chr(c) for c in range(0x110000) if unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co")]
    pools = [known, list(" \n\t\r\u00a0\u0085\u2028\u3000"), list("aeinst"), list("0123\u00bd"), ["'s", "'ll", "'T"]]
    return ["".join(generator.choice(generator.choice(pools)) for _ in range(24)) for _ in range(count)]


def load(vocabulary: Path, merges: Path) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE.from_file(str(vocabulary), str(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(END_OF_TEXT, normalized=False)])
    return tokenizer


def write_encodings(path: Path, tokenizer: Tokenizer, texts: list[str]) -> None:
    with path.open("w", encoding="ascii") as file:
        for text in texts:
            ids = tokenizer.encode(text).ids
            assert tokenizer.decode(ids, skip_special_tokens=False) == text
            file.write(json.dumps({"text": text, "ids": ids}, separators=(",", ":")) + "\n")


def write_reduced(source: Path, out: Path, merges: int) -> None:
    vocabulary = json.loads((source / "vocab.json").read_text(encoding="utf-8"))
    tokens = sorted(vocabulary, key=vocabulary.get)[: BYTES + merges] + [END_OF_TEXT]
    reduced = {token: i for i, token in enumerate(tokens)}
    (out / "vocab.json").write_text(json.dumps(reduced, separators=(",", ":")) + "\n", encoding="ascii")
    lines = (source / "merges.txt").read_text(encoding="utf-8").split("\n")[: 1 + merges]
    (out / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gpt2", type=Path, help="folder with GPT-2's vocab.json and merges.txt")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "gpt2_bpe")
    parser.add_argument("--merges", type=int, default=1000)
    parser.add_argument("--random", type=int, default=40, help="random texts besides the fixed ones")
    args = parser.parse_args()
    args.out.mkdir(exist_ok=True)
    texts = TEXTS + random_texts(args.random)
    write_reduced(args.gpt2, args.out, args.merges)
    write_encodings(args.out / "reduced.jsonl", load(args.out / "vocab.json", args.out / "merges.txt"), texts)
    write_encodings(args.out / "full.jsonl", load(args.gpt2 / "vocab.json", args.gpt2 / "merges.txt"), texts)


if __name__ == "__main__":
    main()
