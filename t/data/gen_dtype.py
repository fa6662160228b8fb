#!/usr/bin/env python3
"""Golden tables of the narrow floating types for t/base/dtype.c.

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


def pack(f, rows, form):
    """three rows a line"""
    rows = [form % tuple(r) for r in rows]
    for i in range(0, len(rows), 3):
        f.write(" ".join(rows[i:i + 3]) + "\n")


def fp8():
    with open("dtype_fp8.inc", "w") as f:
        head(f, "FP32 bits of each code from 0 to the largest finite one, and of the smallest number that\n"
                " * becomes this code; numbers to infinity become the last. Negative numbers: the same with\n"
                " * the sign.")
        for name, dtype, most in FP8:
            value = np.arange(128, dtype=np.uint8).view(dtype).astype(np.float32)
            value = value[np.isfinite(value)].view(np.uint32)
            # bisects between the values of two codes; all conversions to FP8 grow with the number
            lo, hi = np.append(np.uint32(0), value[:-1]), value.copy()
            code = np.arange(len(value))
            while (lo + 1 < hi).any():
                mid = lo + (hi - lo) // 2
                up = encode(mid.view(np.float32), dtype, most) >= code
                lo, hi = np.where(up, lo, mid), np.where(up, mid, hi)
            assert (encode(hi.view(np.float32), dtype, most) == code).all()
            assert (encode((hi[1:] - 1).view(np.float32), dtype, most) == code[:-1]).all()
            f.write("#ifdef %s\n" % name.upper())
            pack(f, zip(value, hi), "{ 0x%08x, 0x%08x },")
            f.write("#endif\n")


def f32():
    rng = np.random.default_rng(SEED)
    parts = []
    # around powers of two that a type represents, and ties
    for lo, hi in ((-28, 18), (-152, -120), (120, 128)):
        e = rng.integers(lo, hi, 40)
        m = np.float64(1) + rng.integers(0, 64, 40) / 64.0
        x = (m * np.exp2(e.astype(np.float64)) * rng.choice((-1, 1), 40)).astype(np.float32)
        b = x.view(np.uint32)
        parts += [b, b + np.uint32(1), b - np.uint32(1)]
    edge = np.array([0.0, -0.0, 65504, 65519.996, 65520, -65520, np.inf, -np.inf, 2.0**-24, 2.0**-25,
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
        head(f, "FP32 bits of chosen and random numbers, and their BF16 and FP16 codes")
        pack(f, zip(bits, bf16, fp16), "{ 0x%08x, 0x%04x, 0x%04x },")


fp8()
f32()
