"""data/tokens-from-text: the tokens that it writes, its messages, and training with them."""

import json
import os
import random
import resource
import shlex
import sys
import unittest
from array import array

from tests.tools.support import BIN, ROOT, FolderCase, run, run_ranks

try:
    import tokenizers
except ImportError:
    tokenizers = None

PROGRAM = ROOT / "data" / "tokens-from-text"
GENERATE = ROOT / "launch" / "generate-text"
VISIBLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
MERGES = ["\u0120 t", "\u0120 a", "h e", "i n", "r e", "o n", "\u0120t he", "\u010a \u010a"]

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@unittest.skipIf(tokenizers is None, "needs the package tokenizers")
class TokensFromTextTest(FolderCase):
    """With the bytes and the first merges of GPT-2's tokenizer, and another merge."""

    def setUp(self) -> None:
        super().setUp()
        letters = [chr(byte) for byte in VISIBLE] + [chr(256 + i) for i in range(256 - len(VISIBLE))]
        names = [*letters, *(merge.replace(" ", "") for merge in MERGES), "<|endoftext|>"]
        (self.folder / "vocab.json").write_text(json.dumps({name: i for i, name in enumerate(names)}))
        (self.folder / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{merge}\n" for merge in MERGES), "utf-8")
        self.out = self.folder / "out.bin"

    def write(self, name: str, text: str) -> str:
        (self.folder / name).write_bytes(text.encode())
        return name

    def convert(self, *names: str, tokenizer: str = ".", code: int = 0, python: tuple[str, ...] = ()) -> str:
        self.out.unlink(missing_ok=True)
        command = [sys.executable, *python, PROGRAM, *names, "out.bin", "--tokenizer", tokenizer]
        result = run(command, code, cwd=self.folder)
        self.assertEqual(list(self.folder.glob("*.partial")), [])
        return result.stdout if code == 0 else result.stderr

    def tokens(self) -> list[int]:
        return list(array("H", self.out.read_bytes()))

    def test_exact_tokens(self) -> None:
        one = self.write("one", "the in the\n\n\U0001f642\0")
        two = self.write("two", "a<|endoftext|>\r\n ")
        self.assertEqual(self.convert(one, two), "18 tokens: train with --data out.bin --vocab 265, or with "
                         "--data out.bin --init MODEL\n")  # fmt: skip
        expected = [83, 258, 220, 259, 262, 198, 198, 172, 253, 247, 224, 188, 264, 64, 264, 201, 198, 220]
        self.assertEqual(self.tokens(), expected)
        tokenizer = tokenizers.ByteLevelBPETokenizer(str(self.folder / "vocab.json"), str(self.folder / "merges.txt"))
        tokenizer.add_special_tokens(["<|endoftext|>"])
        tokenizer.enable_truncation(3)
        (self.folder / "folder").mkdir()
        tokenizer.save(str(self.folder / "folder/tokenizer.json"))
        for path in ("folder", "folder/tokenizer.json"):
            self.convert(one, two, tokenizer=path)
            self.assertEqual(self.tokens(), expected)
        self.convert(one, one)
        self.assertEqual(self.tokens(), [*expected[:12], 264, *expected[:12]])

    def test_pieces_have_the_tokens_of_the_whole(self) -> None:
        words = ["in", "the", "on", "'s", "3", ".", " ", "  ", "\n", "\n\n", "\r\n", "\t", "\u3000"]
        mixed = "".join(random.Random(1).choices(words, k=400_000))
        for text in (mixed, "the" * 100_000, "the\n" * 100_000):
            self.convert(self.write("text", text))
            whole = tokenizers.ByteLevelBPETokenizer(str(self.folder / "vocab.json"), str(self.folder / "merges.txt"))
            self.assertEqual(self.tokens(), whole.encode(text).ids)
        whole.normalizer = tokenizers.normalizers.Prepend("x")  # of each text that it encodes
        whole.save(str(self.folder / "prepends.json"))
        self.convert("text", tokenizer="prepends.json")
        self.assertEqual(self.tokens(), whole.encode(text).ids)

    def byte_level(self) -> "tokenizers.Tokenizer":
        """With the table of letters and merges alone."""
        model = tokenizers.models.BPE.from_file(str(self.folder / "vocab.json"), str(self.folder / "merges.txt"))
        tokenizer = tokenizers.Tokenizer(model)
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        return tokenizer

    def split_by(self, expression: str, normalizer: "tokenizers.normalizers.Normalizer | None" = None) -> "tokenizers.Tokenizer":
        tokenizer, pre = self.byte_level(), tokenizers.pre_tokenizers
        split = pre.Split(tokenizers.Regex(expression), "isolated")
        tokenizer.pre_tokenizer = pre.Sequence([split, pre.ByteLevel(add_prefix_space=False, use_regex=False)])
        if normalizer is not None:
            tokenizer.normalizer = normalizer
        return tokenizer

    def with_added(self, content: str, **settings: bool) -> "tokenizers.Tokenizer":
        tokenizer = self.byte_level()
        tokenizer.add_tokens([tokenizers.AddedToken(content, **settings)])
        return tokenizer

    def of_characters(self, pre_tokenizer: "tokenizers.pre_tokenizers.PreTokenizer | None") -> "tokenizers.Tokenizer":
        names = [*map(chr, range(0x20, 0x7F)), "\n", "\u2581", "n\n", "?"]
        model = tokenizers.models.BPE({name: i for i, name in enumerate(names)}, [("n", "\n")], unk_token="?")
        tokenizer = tokenizers.Tokenizer(model)
        if pre_tokenizer is not None:
            tokenizer.pre_tokenizer = pre_tokenizer
        return tokenizer

    def test_every_kind_of_tokenizer_gives_its_own_tokens(self) -> None:
        pre = tokenizers.pre_tokenizers
        kinds = {
            "GPT-2": self.byte_level(),
            "Llama 3": self.split_by(LLAMA3),
            "Qwen": self.split_by(LLAMA3.replace("{1,3}", ""), tokenizers.normalizers.NFC()),
            "a line feed and a slash in one token": self.split_by(LLAMA3.replace(r"[\r\n]*", r"[\r\n/]*")),
            "an unknown expression": self.split_by(r"[^h]+|h"),
            "a prefix": self.byte_level(),
            "a token with a space": self.with_added("n t"),
            "a token with a line feed": self.with_added("n\nt"),
            "a token that takes white space behind it": self.with_added("on", rstrip=True),
            "a token that takes white space before it": self.with_added("the", lstrip=True),
            "no splits": self.of_characters(None),
            "the first": self.of_characters(pre.Metaspace(prepend_scheme="first")),
            "always": self.of_characters(pre.Metaspace(prepend_scheme="always")),
        }
        kinds["a prefix"].pre_tokenizer = pre.ByteLevel(add_prefix_space=True)
        words = ["in", "the", "on", "'s", "34567", ".", "!", "/", " ", "\n", "\n", "\r\n", "e\u0301", "\u0301", "\u1100", "\u1161"]
        self.write("mixed", mixed := "".join(random.Random(1).choices(words, k=200_000)))
        self.write("lines", lines := "on\nthe!\n/n" * 40_000)
        for kind, tokenizer in kinds.items():
            tokenizer.save(str(self.folder / "kind.json"))
            for name, text in (("mixed", mixed), ("lines", lines)):
                with self.subTest(kind, text=name):
                    self.convert(name, tokenizer="kind.json")
                    # assertEqual() would take minutes to show the difference
                    self.assertTrue(self.tokens() == tokenizer.encode(text, add_special_tokens=False).ids)

    def test_a_normalizer_that_joins_nothing_at_a_cut_takes_no_memory(self) -> None:
        self.split_by(LLAMA3, tokenizers.normalizers.NFC()).save(str(self.folder / "nfc.json"))
        self.split_by(LLAMA3, tokenizers.normalizers.NFKC()).save(str(self.folder / "whole.json"))
        text = self.write("text", "the on in t\u00e9\n" * 400_000)  # 6.4 MB
        show = "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True); "
        show += "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
        used_kib = {}
        for kind in ("nfc", "whole"):
            self.out.unlink(missing_ok=True)
            command = [sys.executable, PROGRAM, text, "out.bin", "--tokenizer", f"{kind}.json"]
            used_kib[kind] = int(run([sys.executable, "-c", show, *command], cwd=self.folder).stdout.splitlines()[-1])
        self.assertLess(used_kib["nfc"], used_kib["whole"] / 2)

    def test_texts_without_tokens(self) -> None:
        words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"the": 0, "?": 1}, unk_token="?"))
        words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
        words.add_special_tokens(["<|endoftext|>"])
        words.save(str(self.folder / "words.json"))
        blank = self.write("blank", " \n ")
        why = "no tokens: there is no text, or only what the tokenizer drops, as white space\n"
        for names in ([blank], [blank, blank], ["/dev/null"]):
            refused = self.convert(*names, tokenizer="words.json", code=2)
            self.assertEqual(refused, f"tokens-from-text: {', '.join(names)}: {why}")
            self.assertFalse(self.out.exists())
        self.convert(blank, self.write("text", "the the"), tokenizer="words.json")
        self.assertEqual(self.tokens(), [2, 0, 0])
        tokenizers.Tokenizer(tokenizers.models.WordLevel({"on": 0}, unk_token="?")).save(str(self.folder / "words.json"))
        refused = self.convert("text", tokenizer="words.json", code=2)
        self.assertRegex(refused, r"\Atokens-from-text: text: the tokenizer cannot encode the text: .*\n\Z")

    def test_mistakes(self) -> None:
        text = self.write("text", "the")
        self.assertIn("none: No such file or directory", self.convert(text, "none", code=2))
        self.assertIn("empty: the file is empty", self.convert(text, self.write("empty", ""), code=2))
        (self.folder / "latin").write_bytes(b"\xff")
        self.assertIn("latin: the text is not UTF-8: ", self.convert(text, "latin", code=2))
        self.assertIn("none: neither tokenizer.json nor a folder ", self.convert(text, tokenizer="none", code=2))
        self.assertIn("text: neither tokenizer.json nor ", self.convert(text, tokenizer="text", code=2))
        self.assertIn("`pip install tokenizers`", self.convert(text, code=2, python=("-S",)))

        refused = run([sys.executable, PROGRAM, text, text, "--tokenizer", "."], 2, cwd=self.folder).stderr
        self.assertEqual(refused, "tokens-from-text: text: ddptrain takes a file for tokens if its name ends in .bin\n")
        self.write("old.bin", "old")
        refused = run([sys.executable, PROGRAM, text, "old.bin", "--tokenizer", "."], 2, cwd=self.folder).stderr
        self.assertEqual(refused, "tokens-from-text: old.bin: the file exists; name another one\n")

    def test_a_full_disk_leaves_no_file(self) -> None:
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))  # noqa: E731
        command = [sys.executable, PROGRAM, self.write("text", "a" * 4000), "out.bin", "--tokenizer", "."]
        self.assertEqual(run(command, 1, cwd=self.folder, preexec_fn=limit).stderr, "tokens-from-text: out.bin: File too large\n")
        self.assertEqual(list(self.folder.glob("out.bin*")), [])

    def test_large_vocabularies_have_32_bits(self) -> None:
        names = json.loads((self.folder / "vocab.json").read_text())
        self.write("vocab.json", json.dumps({name: 65536 if name == "a" else i for name, i in names.items()}))
        self.convert(self.write("text", "bab"))
        content = self.out.read_bytes()
        header, tokens = array("i", content[:1024]), array("I", content[1024:])
        self.assertEqual(list(header[:4]), [20240801, 7, 3, 0])
        self.assertEqual(list(tokens), [names["b"], 65536, names["b"]])

    def test_generated_ids_become_text(self) -> None:
        tokenizer = tokenizers.ByteLevelBPETokenizer(str(self.folder / "vocab.json"), str(self.folder / "merges.txt"))
        tokenizer.save(str(self.folder / "tokenizer.json"))
        self.convert(self.write("text", "on the in \U0001f642 " * 400))
        shape = ("--layers", 1, "--width", 16, "--heads", 1, "--ff", 16, "--seq", 32, "--vocab", 265)
        run_ranks(1, "--device", "cpu", "--model", "gpt", *shape, "--batch", 4, "--steps", 60, "--optimizer", "adamw", "--lr",
                  0.02, "--baseline", "off", "--data", self.out, "--save", self.folder / "saved")  # fmt: skip
        command = [sys.executable, GENERATE, "--tokenizer", ".", "--prompt", "on the", "--prompt", "on", "--", BIN / "ddptrain",
                   "--generate", "--device", "cpu", "--model", "gpt", "--init", "saved", "--temperature", 0,
                   "--max-tokens", 14]  # fmt: skip
        first, second, empty, *_ = run(command, cwd=self.folder).stdout.split("\n")
        self.assertTrue(first.startswith("on the in \U0001f642 on the in"), first)
        self.assertTrue(second.startswith("on the in \U0001f642 on "), second)
        self.assertEqual(empty, "")
        refused = run([*command[:-1], 99], 2, cwd=self.folder)
        self.assertIn("prompt and its continuation (--max-tokens) have 101 tokens together", refused.stderr)
        self.assertEqual(refused.stdout, "")
        (self.folder / "tokenizer.json").write_text("{}")
        refused = run(command, 2, cwd=self.folder)
        self.assertIn("generate-text: .: its tokenizer cannot be read: ", refused.stderr)
        (self.folder / "tokenizer.json").unlink()
        self.assertEqual(run(command, cwd=self.folder).stdout.split("\n")[:2], [first, second])  # vocab.json, merges.txt
        for place in ("none", "saved"):
            refused = run([*command[:3], place, *command[4:]], 2, cwd=self.folder)
            self.assertIn(f"generate-text: {place}: it is no tokenizer.json, and has neither that file nor", refused.stderr)
            self.assertIn("`ddptrain --generate --prompt TEXT` is enough", refused.stderr)

    def test_commands_that_generate_nothing(self) -> None:
        tokenizer = tokenizers.ByteLevelBPETokenizer(str(self.folder / "vocab.json"), str(self.folder / "merges.txt"))
        tokenizer.save(str(self.folder / "tokenizer.json"))
        command = [sys.executable, GENERATE, "--tokenizer", ".", "--prompt", "on", "--prompt", "in", "--"]
        for script, reason in (("echo Epoch 1; exec sleep 600", "it printed 'Epoch'"), ("echo 1 99999999999", "it printed '9"),
                               ("echo 1 2", "it ended without them"), ("true", "it ended without them")):  # fmt: skip
            refused = run([*command, "sh", "-c", script], 2, cwd=self.folder)
            self.assertRegex(refused.stderr, rf"\Agenerate-text: sh gave no token ids: {reason}.*\n\Z")
            self.assertEqual(refused.stdout[:2], "on" if "echo 1" in script else "")
        self.assertEqual(run([*command, "sh", "-c", "exit 3"], 3, cwd=self.folder).stdout, "")

    def test_a_terminal_gets_no_control_characters(self) -> None:
        names = json.loads((self.folder / "vocab.json").read_text())
        ids = " ".join(str(names[letter]) for letter in "\u011ba\u00c2\u013d\u00c3\u00a9")  # bytes of ESC, a, U+009B, U+00E9
        command = [sys.executable, GENERATE, "--tokenizer", ".", "--prompt", "on\x1b", "--", "sh", "-c", f"echo {ids}"]
        self.assertEqual(run(command, cwd=self.folder).stdout, "on\x1b\x1ba\x9b\u00e9\n")
        mine, its = os.openpty()
        self.addCleanup(os.close, mine)
        run(command, cwd=self.folder, capture_output=False, stdout=its)
        os.close(its)
        self.assertEqual(os.read(mine, 100).decode(), "on??a?\u00e9\r\n")

    def test_a_reader_that_ends_ends_it_quietly(self) -> None:
        tokenizer = tokenizers.ByteLevelBPETokenizer(str(self.folder / "vocab.json"), str(self.folder / "merges.txt"))
        tokenizer.save(str(self.folder / "tokenizer.json"))
        ids = "while echo -n '83 '; do sleep 0.01; done"
        words = [sys.executable, GENERATE, "--tokenizer", ".", "--prompt", "on", "--", "bash", "-c", ids]
        done = run(["bash", "-c", f"{shlex.join(map(str, words))} | head -c 1"], cwd=self.folder)
        self.assertEqual((done.stdout, done.stderr), ("o", ""))

    def test_ddptrain_trains_with_it(self) -> None:
        self.convert(self.write("text", "on the in " * 400))
        shape = ("--layers", 1, "--width", 16, "--heads", 1, "--ff", 16, "--seq", 16, "--vocab", 265)
        train = ("--device", "cpu", "--model", "gpt", *shape, "--batch", 4, "--steps", 2, "--baseline", "off")
        run_ranks(1, *train, "--data", self.out, "--metrics", self.folder / "metrics")
        self.assertEqual(self.lines("metrics")[-1]["vocabulary"], 265)
