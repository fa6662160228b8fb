#!/usr/bin/env python3
"""t/data/gen_sentencepiece.py - three small models of SentencePiece, and what it makes of texts.

  python3 t/data/gen_sentencepiece.py t    needs sentencepiece 0.2.1

Writes t/data/sp_*.model and t/data/sentencepiece.inc, which t/token/sentencepiece.c reads. Rules
of normalizers are a few of our own: the map of nmt_nfkc alone has 230 KB.
"""
import os
import random
import sys
import tempfile

import sentencepiece as spm

RULES = {"\ufb01": "fi", "\uff21": "A", "\u3000": " ", "\u00a0": " ", "\x01": "", "\u2026": "...",
         "e\u0301": "\u00e9", "e": "e", "\u00bd": "1\u20442", "B": "b", "\u00a8": " \u0308"}
WORDS = ("the cat sat on the mat and the dog ran after caf\u00e9 \u4e2d\u6587 naught 12 345 (x) "
         "tokens token's re-read reader reading").split(" ")
TEXTS = ["", " ", "  ", "the cat", " the cat ", "the  cat   sat", "the<sep>cat", "<sep>", " <sep> a",
         "\ufb01n \uff21b\u3000c\u00a0d", "a\x01b", "\x01", "\u3000\u3000", "e\u0301e", "caf\u00e9",
         "\u4e2d\u6587 \u65e5\u672c", "\U0001f600z\U0001f600\U0001f601", "<s>the</s><unk>", "\u2581",
         "\u2581the \u2581", "keepkeep keep", "token's \u2026 reader\n12\t345", "a\u00a8", "BatB",
         "\u00bd", "re-reading the tokens after 12345 (x) \u65e5", "\u65e5\u672c\u65e5 \u672c a",
         "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "  \u2581 \u3000the"]
MODELS = {
    "sp_bpe": dict(model_type="bpe", vocab_size=340, byte_fallback=True,
                   normalization_rule_name="identity", remove_extra_whitespaces=False,
                   control_symbols=["[INST]"]),
    "sp_bpe_rules": dict(model_type="bpe", vocab_size=90, rules=True,
                         user_defined_symbols=["<sep>", "keep", "\u2581\u2581"]),
    "sp_unigram": dict(model_type="unigram", vocab_size=340, byte_fallback=True, rules=True,
                       user_defined_symbols=["<sep>", "keep"], eos_piece="<end>"),
    "sp_unigram_bare": dict(model_type="unigram", vocab_size=70, add_dummy_prefix=False,
                                  normalization_rule_name="identity", bos_id=-1,
                                  remove_extra_whitespaces=False),
}


def c_string(b):
    """A literal of C, in lines of at most 80 columns."""
    parts = [""]
    for x in b:
        c = f"\\{x:03o}" if x < 32 or x > 126 or x in b'"\\?' else chr(x)
        if len(parts[-1]) + len(c) > 80:
            parts.append("")
        parts[-1] += c
    return "\n\t  ".join(f'"{part}"' for part in parts)


def main():
    out = sys.argv[1] + "/data/"
    rng = random.Random(3)
    rows = []
    with tempfile.TemporaryDirectory() as tmp:
        with open(f"{tmp}/text", "w", encoding="utf-8") as f:
            for _ in range(600):
                f.write(" ".join(rng.choice(WORDS) for _ in range(rng.randrange(3, 12))) + "\n")
        with open(f"{tmp}/rules", "w", encoding="utf-8") as f:
            for a, b in RULES.items():
                f.write(" ".join(f"{ord(c):X}" for c in a) + "\t" +
                        " ".join(f"{ord(c):X}" for c in b) + "\n")
        for name, kw in MODELS.items():
            if kw.pop("rules", False):
                kw["normalization_rule_tsv"] = f"{tmp}/rules"
            spm.SentencePieceTrainer.train(input=f"{tmp}/text", model_prefix=f"{tmp}/{name}",
                                           character_coverage=0.98, minloglevel=2,
                                           hard_vocab_limit=False, **kw)
            data = open(f"{tmp}/{name}.model", "rb").read()
            with open(out + name + ".model", "wb") as f:
                f.write(data.replace(tmp.encode(), b"/" * len(tmp)))
            sp = spm.SentencePieceProcessor(model_file=out + name + ".model")
            for text in TEXTS + [" ".join(rng.choice(WORDS) for _ in range(40))]:
                ids = sp.encode(text)
                rows.append(f'\t{{ "{name}",\n\t  {c_string(text.encode())},\n'
                            f"\t  {c_string(' '.join(map(str, ids)).encode())},\n"
                            f"\t  {c_string(sp.decode(ids).encode())} }},\n")
    with open(out + "sentencepiece.inc", "w", encoding="ascii") as f:
        f.write("/* t/data/gen_sentencepiece.py: model, text, tokens, decoded text */\n")
        f.writelines(rows)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONHASHSEED", "0")
    main()
