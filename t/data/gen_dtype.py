#!/usr/bin/env python3
"""Golden tables of the narrow floating types for t/core/dtype.c.

Run in t/data, with numpy and ml_dtypes: it rewrites dtype_fp8.inc and
dtype_f32.inc. The roundings are those of ml_dtypes and numpy. Their FP8 casts do not
saturate (beyond the largest finite value E4M3FN gives NaN, E5M2 infinity), so inputs
are clipped to it first, as te_fp8_encode(3) specifies; a clip changes
no other value. NaN inputs are left out: the test states what they give.
"""
import ml_dtypes
import numpy as np

SEED = 20261121
FP8 = (("e4m3", ml_dtypes.float8_e4m3fn, 448.0), ("e5m2", ml_dtypes.float8_e5m2, 57344.0))


def encode(x, dtype, most):
    return np.clip(x, np.float32(-most), np.float32(most)).astype(dtype).view(np.uint8)


def head(f, what):
    f.write("/*\n * %s\n * Made by t/data/gen_dtype.py with ml_dtypes %s, numpy %s.\n */\n"
            % (what, ml_dtypes.__version__, np.__version__))


def fp8():
    with open("dtype_fp8.inc", "w") as f:
        head(f, "DECODE(code, FP32 bits) of all codes but NaN; ENCODE(first, last, code) of all BF16\n"
                " * inputs but NaN, as runs of equal code. Infinities and values out of range saturate.")
        for name, dtype, most in FP8:
            up = name.upper()
            value = np.arange(256, dtype=np.uint8).view(dtype).astype(np.float32)
            f.write("#ifdef %s\n" % up)
            for c in range(256):
                if not np.isnan(value[c]):
                    f.write("DECODE(0x%02x, 0x%08x)\n" % (c, value[c:c + 1].view(np.uint32)[0]))
            for half in (0x0000, 0x8000):
                bits = np.arange(half, half + 0x7f81, dtype=np.uint32)  # to infinity
                code = encode((bits << 16).view(np.float32), dtype, most)
                start = 0
                for i in range(1, len(code) + 1):
                    if i == len(code) or code[i] != code[start]:
                        f.write("ENCODE(0x%04x, 0x%04x, 0x%02x)\n"
                                % (bits[start], bits[i - 1], code[start]))
                        start = i
            f.write("#endif\n")


def f32():
    rng = np.random.default_rng(SEED)
    parts = [rng.integers(0, 1 << 32, 220, dtype=np.uint64).astype(np.uint32)]
    # around every power of two each type can tell, and its ties
    for lo, hi in ((-28, 18), (-152, -120), (120, 128)):
        e = rng.integers(lo, hi, 220)
        m = np.float64(1) + rng.integers(0, 64, 220) / 64.0
        x = (m * np.exp2(e.astype(np.float64)) * rng.choice((-1, 1), 220)).astype(np.float32)
        b = x.view(np.uint32)
        parts += [b, b + np.uint32(1), b - np.uint32(1)]
    edge = np.array([0.0, -0.0, 65504, 65519.996, 65520, -65520, 448, 464, 480, 57344, 61440,
                     np.inf, -np.inf, 2.0**-24, 2.0**-25, 2.0**-9, 2.0**-10, 2.0**-16, 2.0**-17,
                     3.4028235e38, 3.3895314e38, 3.3961776e38, 1e-45], np.float32)
    parts.append(edge.view(np.uint32))
    bits = np.unique(np.concatenate(parts))
    x = bits.view(np.float32)
    keep = ~np.isnan(x)
    bits, x = bits[keep], x[keep]
    with np.errstate(all="ignore"):
        bf16 = x.astype(ml_dtypes.bfloat16).view(np.uint16)
        fp16 = x.astype(np.float16).view(np.uint16)
    with open("dtype_f32.inc", "w") as f:
        head(f, "ROW(FP32 bits, BF16, FP16, E4M3, E5M2) of chosen and random numbers, FP8 saturated")
        for row in zip(bits, bf16, fp16, encode(x, *FP8[0][1:]), encode(x, *FP8[1][1:])):
            f.write("ROW(0x%08x, 0x%04x, 0x%04x, 0x%02x, 0x%02x)\n" % row)


fp8()
f32()
