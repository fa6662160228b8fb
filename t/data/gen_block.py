#!/usr/bin/env python3
"""Golden data of block-scaled FP8 for t/kernels/host_kernels_block.c.

Run in t/data, with numpy and ml_dtypes: it rewrites block.inc. A second implementation of te_k_q with
block scaling (kernels/te_k.h): blocks are slices, scales come from numpy's FP32 division and
bit operations, E8M0 scales from exact rational numbers, codes from ml_dtypes. Those casts do not
saturate, so products are clipped to the largest finite value first; NaN stays NaN. Only checksums of the large results are
kept: FNV-1a over the bytes of each array, with all NaN codes made 0x7f.

Inputs are made of a 64-bit linear congruential generator that the test repeats: number i has the
bits of state >> 32 with the exponent field reduced to a range, so that both sides make the same
FP32 numbers without a library. Special numbers replace some of them.
"""
from fractions import Fraction

import ml_dtypes
import numpy as np

CASES = (  # rows, cols, fp8, 0: 1x128, 1: 128x128 or 2: 1x32, pow2, epsilon, seed
    (1, 1, "e4m3", 0, 1, 0.0, 1),
    (130, 261, "e4m3", 0, 1, 0.0, 2),
    (130, 261, "e4m3", 0, 0, 0.0, 3),
    (130, 261, "e5m2", 0, 1, 0.25, 4),
    (257, 128, "e5m2", 0, 0, 1e-3, 5),
    (128, 384, "e4m3", 1, 1, 0.0, 6),
    (130, 700, "e4m3", 1, 0, 0.0, 7),
    (300, 40, "e5m2", 1, 1, 0.0, 8),
    (300, 40, "e4m3", 1, 0, 2.0, 9),
    (1, 1, "e4m3", 2, 1, 0.0, 10),
    (130, 261, "e4m3", 2, 1, 0.0, 11),
    (257, 128, "e5m2", 2, 1, 0.0, 12),
    (300, 48, "e4m3", 2, 1, 0.0, 13),
)
FP8 = {"e4m3": (ml_dtypes.float8_e4m3fn, 448.0), "e5m2": (ml_dtypes.float8_e5m2, 57344.0)}
SPECIAL = np.array([0, 0x80000000, 0x7fc00000, 0x7f800000, 0xff800000, 1, 0x007fffff, 0x00800000,
                    0x7f7fffff, 0x3f800000], dtype=np.uint32)
FLT_MAX = np.float32(np.finfo(np.float32).max)


def inputs(rows, cols, seed):
    state, bits = seed, np.empty(rows * cols, dtype=np.uint32)
    for i in range(rows * cols):
        state = (state * 6364136223846793005 + 1442695040888963407) & (2**64 - 1)
        w = state >> 32
        # sign and mantissa as they are, exponent 112 to 143
        bits[i] = (w & 0x807fffff) | (112 + (w >> 23 & 31)) << 23
        r = i // cols
        if r % 7 == 3:  # a row of small numbers
            bits[i] = (w & 0x807fffff) | (w >> 23 & 3) << 23
        if r % 16 == 5:  # a row of special numbers, one kind or all
            bits[i] = SPECIAL[r // 16 if r < 160 else i % 10]
    return bits.view(np.float32).reshape(rows, cols)


def scale_of(block, most, eps, pow2):
    a = np.abs(block)
    a = a[~np.isnan(a)]
    amax = np.float32(a.max()) if a.size else np.float32(0)
    amax = np.float32(eps) if amax < np.float32(eps) else amax
    if amax == 0 or np.isinf(amax):
        s = np.float32(1)
    else:
        with np.errstate(over="ignore"):
            s = np.float32(most) / amax
        s = FLT_MAX if np.isinf(s) else s
    if pow2:
        s = (np.array([s], dtype=np.float32).view(np.uint32) & np.uint32(0x7f800000)).view(
            np.float32)[0]
    return s


def encode(v, s, fp8):
    dtype, most = FP8[fp8]
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        p = (v * s).astype(np.float32)
        code = np.clip(p, np.float32(-most), np.float32(most)).astype(dtype).view(np.uint8).copy()
    code[np.isnan(p)] = 0x7f
    return code


def quantize(x, fp8, height, width, eps, pow2):
    """codes and scales of blocks of height x width; the scales as a dense matrix"""
    rows, cols = x.shape
    most = FP8[fp8][1]
    codes = np.empty(x.shape, dtype=np.uint8)
    inv = np.empty((-(-rows // height), -(-cols // width)), dtype=np.float32)
    for i in range(inv.shape[0]):
        for j in range(inv.shape[1]):
            at = np.s_[i * height:(i + 1) * height, j * width:(j + 1) * width]
            s = scale_of(x[at], most, eps, pow2)
            codes[at] = encode(x[at], s, fp8)
            with np.errstate(under="ignore"):
                inv[i, j] = np.float32(1) / s
    return codes, inv


def e8m0_of(block, most):
    a = np.abs(block[~np.isnan(block)])
    amax = float(a.max()) if a.size else 0.0
    if np.isinf(amax):
        return 254
    byte = 0
    while Fraction(2) ** (byte - 127) < Fraction(amax) / int(most):
        byte += 1
    return byte


def quantize_mx(x, fp8):
    """codes of blocks of 1 x 32, and the E8M0 bytes as they are stored"""
    rows, cols = x.shape
    codes = np.empty(x.shape, dtype=np.uint8)
    scales = np.zeros((-(-rows // 128), -(-cols // 128), 32, 4, 4), dtype=np.uint8)
    for i in range(rows):
        for j in range(0, cols, 32):
            at = np.s_[i:i + 1, j:j + 32]
            byte = e8m0_of(x[at], FP8[fp8][1])
            inv = np.uint8(byte).reshape(1).view(ml_dtypes.float8_e8m0fnu).astype(np.float64)[0]
            codes[at] = encode(x[at].astype(np.float64), 1 / inv, fp8)
            scales[i // 128, j // 128, i % 32, i % 128 // 32, j % 128 // 32] = byte
    return codes, scales


def padded(m):
    """the last extent to a multiple of 4"""
    return np.pad(m, ((0, 0), (0, -m.shape[1] % 4)))


def fnv(a):
    h = 2166136261
    for b in np.ascontiguousarray(a).tobytes():
        h = (h ^ b) * 16777619 & 0xffffffff
    return h


def write(f, case, row, row_scales, col, col_scales):
    rows, cols, fp8, scaling, pow2, eps, seed = case
    f.write("BLOCK(%d, %d, %s, %s, %d, %sf, %d, 0x%08x, 0x%08x, 0x%08x, 0x%08x)\n"
            % (rows, cols, fp8.upper(), scaling, pow2, float(eps), seed, fnv(row),
               fnv(row_scales), fnv(col), fnv(col_scales)))


def main():
    with open("block.inc", "w") as f:
        f.write("/*\n * Block-scaled FP8: BLOCK(rows, cols, type, scaling, pow2, epsilon, seed, FNV-1a of "
                "row codes,\n * their scales, column codes, their scales).\n"
                " * Made by t/data/gen_block.py with ml_dtypes %s, numpy %s.\n */\n"
                % (ml_dtypes.__version__, np.__version__))
        for rows, cols, fp8, square, pow2, eps, seed in CASES:
            x = inputs(rows, cols, seed)
            if square == 2:
                row, row_scales = quantize_mx(x, fp8)
                col, col_scales = quantize_mx(x.T, fp8)
                write(f, (rows, cols, fp8, "1X32", pow2, eps, seed), row, row_scales, col,
                      col_scales)
                continue
            row, inv = quantize(x, fp8, 128 if square else 1, 128, eps, pow2)
            col, cinv = quantize(x, fp8, 128, 128 if square else 1, eps, pow2)
            # [rows / 128, cols / 128], or one word a row: [cols / 128, rows]
            row_scales = padded(inv if square else inv.T)
            # of the copy stored as [cols, rows]
            col_scales = padded(cinv.T if square else cinv)
            write(f, (rows, cols, fp8, "128X128" if square else "1X128", pow2, eps, seed), row,
                  row_scales, col.T, col_scales)


if __name__ == "__main__":
    main()
