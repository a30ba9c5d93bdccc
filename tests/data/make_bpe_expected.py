#!/usr/bin/env python3
"""Writes tests/data/gpt2_bpe: what bpe_tokenizer_test.cpp compares with.

The input is a folder with GPT-2's vocab.json and merges.txt, the reference the package tokenizers of Hugging Face.
vocab.json and merges.txt are GPT-2's cut to the first merges; reduced.jsonl holds encodings with these, full.jsonl with
all of GPT-2's (the test reads those if $DDPTRAIN_GPT2 is a folder with the two files). The texts are those of
reduced.jsonl: odd ones, and random ones of characters that Unicode 14 knows, as PCRE2 10.42 does. Add a line for another.
"""

import argparse
import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

BYTES = 256
END_OF_TEXT = "<|endoftext|>"


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
    args = parser.parse_args()
    lines = (args.out / "reduced.jsonl").read_text(encoding="ascii").splitlines()
    texts = [json.loads(line)["text"] for line in lines]
    write_reduced(args.gpt2, args.out, args.merges)
    write_encodings(args.out / "reduced.jsonl", load(args.out / "vocab.json", args.out / "merges.txt"), texts)
    write_encodings(args.out / "full.jsonl", load(args.gpt2 / "vocab.json", args.gpt2 / "merges.txt"), texts)


if __name__ == "__main__":
    main()
