#!/usr/bin/env python3
"""Golden data of NVFP4 for t/kernels/host_kernels_nvfp4.c.

Run in t/data, with numpy and ml_dtypes: it rewrites nvfp4.inc. A second implementation of
te_k_quantize to E2M1 (kernels/quant/quant.h): the transform is a product with a matrix made of
Kronecker products, in FP32 where inputs make all sums exact; codes and scale bytes come from
ml_dtypes, random numbers from Philox on Python's integers. Checksums are FNV-1a over the bytes of
each array. Inputs are made of a 64-bit linear congruential generator that the test repeats.
"""
import ml_dtypes
import numpy as np

CASES = (  # rows, cols, padding of both, 1x16 or 16x16, stochastic, epsilon, kind of input, seed
    (16, 16, 0, 0, 0, "1X16", 0, 0.0, 1, 1),
    (144, 272, 13, 11, 0, "1X16", 0, 0.0, 1, 2),
    (144, 272, 13, 11, 0, "1X16", 1, 0.0, 1, 3),
    (304, 48, 0, 0, 0, "1X16", 1, 0.0, 1, 4),
    (144, 272, 13, 11, 0, "16X16", 0, 0.0, 0, 5),
    (304, 160, 3, 0, 0, "16X16", 0, 0.0, 4, 6),
    (39, 400, 0, 5, 1, "1X16", 0, 0.0, 0, 7),
    (39, 400, 0, 5, 1, "1X16", 1, 0.0, 4, 8),
    (39, 400, 0, 5, 1, "16X16", 0, 0.0, 0, 9),
    (32, 32, 0, 0, 1, "1X16", 0, 100000.0, 0, 10),
    (32, 32, 0, 0, 1, "1X16", 0, 0.0, 2, 11),
    (32, 32, 0, 0, 1, "16X16", 0, 0.0, 3, 12),
    (32, 32, 0, 0, 1, "1X16", 1, 0.0, 0, 13),
)
SPECIAL = np.array([0, 0x80000000, 0x7fc00000, 0x3f800000, 1, 0x007fffff, 0x00800000, 0xff800000],
                   dtype=np.uint32)
SIGNS = (1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1)
F4, F8 = ml_dtypes.float4_e2m1fn, ml_dtypes.float8_e4m3fn
FLT_MAX = np.float32(np.finfo(np.float32).max)
f32 = np.float32


def inputs(rows, cols, kind, seed):
    """0: any FP32 numbers of 32 exponents, with special ones; 1: integers of 12 bits, so that sums
    of 16 are exact; 2: all 0; 3: subnormal numbers; 4: as 0, with infinity"""
    state, bits = seed, np.empty(rows * cols, dtype=np.uint32)
    for i in range(rows * cols):
        state = (state * 6364136223846793005 + 1442695040888963407) & (2**64 - 1)
        w = state >> 32
        if kind == 1:
            bits[i] = f32(((w >> 8 & 0xfff) - 0x800) >> (w & 7)).view(np.uint32)
        elif kind == 2:
            bits[i] = 0
        elif kind == 3:
            bits[i] = w & 0x80000fff
        else:
            bits[i] = (w & 0x807fffff) | (112 + (w >> 23 & 31)) << 23
            if i // cols % 16 == 5:  # elements of some blocks
                bits[i] = SPECIAL[i // 40 % (8 if kind == 4 else 7)] if i % 40 < 3 else bits[i]
    return bits.view(np.float32).reshape(rows, cols)


def transform(t):
    """rows of t, 16 elements at a time"""
    h = np.array([[1]], dtype=np.float32)
    for _ in range(4):
        h = np.kron(np.array([[1, 1], [1, -1]], dtype=np.float32), h)
    v = t.reshape(-1, 16)
    return ((v * np.array(SIGNS, dtype=np.float32)) @ h * f32(0.25)).reshape(t.shape)


def level(x, eps):
    a = np.abs(x[~np.isnan(x)])
    amax = f32(a.max()) if a.size else f32(0)
    amax = f32(eps) if amax < f32(eps) else amax
    if amax == 0 or np.isinf(amax):
        s = f32(1)
    else:
        s = min(f32(2688) / amax, FLT_MAX)
    return s, f32(1) / s


def block(b, s, t):
    """scale byte and factor of a block"""
    if np.isnan(b).any():
        return 0x7f, f32(0)
    d = min(f32(np.abs(b).max()) / f32(6) * s, f32(448))
    e = f32(d).astype(F8)
    if e == 0:
        return 0, f32(0)
    return int(e.view(np.uint8)), min(f32(1) / (f32(e) * t), FLT_MAX)


def philox(seed, c):
    k0, k1 = seed & 0xffffffff, seed >> 32
    c = list(c)
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [p1 >> 32 ^ c[1] ^ k0, p1 & 0xffffffff, p0 >> 32 ^ c[3] ^ k1, p0 & 0xffffffff]
        k0, k1 = (k0 + 0x9E3779B9) & 0xffffffff, (k1 + 0xBB67AE85) & 0xffffffff
    return c


VALUES = [0, 0.5, 1, 1.5, 2, 3, 4, 6]


def round_random(y, u):
    z = min(abs(float(y)), 6.0)
    k = max(i for i in range(8) if VALUES[i] <= z)
    if k < 7:
        k += u + int(65536 * (z - VALUES[k]) / (VALUES[k + 1] - VALUES[k])) >= 65536
    return k | (8 if np.signbit(y) else 0)


def quantize(v, s, t, height, seed, col):
    """packed codes of v, a copy as it is stored, and its array of scales"""
    rows, cols = v.shape
    code = np.zeros((rows, cols), dtype=np.uint8)
    scales = np.zeros((-(-rows // 128), -(-cols // 64), 32, 4, 4), dtype=np.uint8)
    for r0 in range(0, rows, height):
        for c0 in range(0, cols, 16):
            b = v[r0:r0 + height, c0:c0 + 16]
            e, by = block(b, s, t)
            y = (b * by).astype(np.float32)
            for i, j in np.ndindex(*b.shape):
                r, c = r0 + i, c0 + j
                scales[r // 128, c // 64, r % 32, r % 128 // 32, c % 64 // 16] = e
                if np.isnan(y[i, j]):
                    k = 0
                elif seed is None:
                    k = int(np.clip(y[i, j], f32(-6), f32(6)).astype(F4).view(np.uint8))
                else:
                    at = r * cols + c
                    w = philox(seed, (at // 8, at // 8 >> 32, col, 0))
                    k = round_random(y[i, j], w[at % 8 // 2] >> 16 * (at % 2) & 0xffff)
                code[r, c] = k
    head = np.zeros(16, dtype=np.uint8)
    head[:4] = np.array([t]).view(np.uint8)
    return code[:, ::2] | code[:, 1::2] << 4, np.concatenate([head, scales.ravel()])


def fnv(a):
    h = 2166136261
    for b in np.ascontiguousarray(a).tobytes():
        h = (h ^ b) * 16777619 & 0xffffffff
    return h


def main():
    np.seterr(all="ignore")
    with open("nvfp4.inc", "w") as f:
        f.write("/*\n * NVFP4: NVFP4(rows, cols, pad_rows, pad_cols, row-wise copy only, scaling, "
                "stochastic, epsilon,\n * input, seed, FNV-1a of row codes, their scales, column "
                "codes, their scales).\n * Made by t/data/gen_nvfp4.py with ml_dtypes %s, numpy %s.\n */\n"
                % (ml_dtypes.__version__, np.__version__))
        for rows, cols, pr, pc, row_only, scaling, stochastic, eps, kind, seed in CASES:
            x = np.zeros((rows, cols), dtype=np.float32)
            x[:rows - pr, :cols - pc] = inputs(rows - pr, cols - pc, kind, seed)
            s, t = level(x, eps)
            key = None
            if stochastic:
                a = np.abs(x[~np.isnan(x)]).max()
                total = int(x.view(np.uint32).astype(np.uint64).sum()) & 0xffffffff
                key = int(np.array([a]).view(np.uint32)[0]) | total << 32
            height = 16 if scaling == "16X16" else 1
            out = [*quantize(x, s, t, height, key, 0)]
            if not row_only:
                col = np.ascontiguousarray(x.T)
                if scaling == "1X16":
                    col = transform(col)
                    s, t = level(col, eps)
                out += quantize(col, s, t, height, key, 1)
            sums = [fnv(a) for a in out] + [0] * (4 - len(out))
            f.write("NVFP4(%d, %d, %d, %d, %d, %s, %d, %sf, %d, %d, %s)\n"
                    % (rows, cols, pr, pc, row_only, scaling, stochastic, eps, kind, seed,
                       ", ".join("0x%08x" % a for a in sums)))


if __name__ == "__main__":
    main()
