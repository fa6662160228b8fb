#!/usr/bin/env python3
"""tiny_numpy.py FILE [SECONDS] - te_train's preset tiny in FP32 by numpy, to compare speeds.

The same model (4 Llama layers, 128 wide, 4 heads, SwiGLU of 352, tied embedding), batches (4 x 128
bytes) and optimizer (clipping at 1, AdamW), written as a numpy user would: whole arrays, no loop
over rows or heads. Prints the loss now and then, and the tokens of a second in the end.
"""
import sys
import time

import numpy as np

L, D, H, F, T, B, V = 4, 128, 4, 352, 128, 4, 256
HD, EPS, LR, B1, B2, WD = D // H, 1e-5, 3e-3, 0.9, 0.99, 0.1
f32 = np.float32
rng = np.random.default_rng(1337)


def init():
    def normal(*shape, std=0.02):
        return rng.standard_normal(shape).astype(f32) * f32(std)

    w = {"embed": normal(V, D), "norm": np.ones(D, f32)}
    for i in range(L):
        w[f"n1.{i}"] = np.ones(D, f32)
        w[f"qkv.{i}"] = normal(D, 3 * D)
        w[f"proj.{i}"] = normal(D, D, std=0.02 / (2 * L) ** 0.5)
        w[f"n2.{i}"] = np.ones(D, f32)
        w[f"up.{i}"] = normal(D, 2 * F)
        w[f"down.{i}"] = normal(F, D, std=0.02 / (2 * L) ** 0.5)
    return w


angle = np.arange(T)[:, None] / 10000.0 ** (np.arange(0, HD, 2) / HD)
COS, SIN = np.cos(angle).astype(f32), np.sin(angle).astype(f32)
MASK = np.triu(np.full((T, T), -np.inf, f32), 1)


def rope(x, sign):
    a, b = x[..., : HD // 2], x[..., HD // 2:]
    return np.concatenate((a * COS - sign * b * SIN, b * COS + sign * a * SIN), -1)


def rms(x, g):
    r = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + f32(EPS))
    return x * r * g, (x, r, g)


def rms_back(dy, saved):
    x, r, g = saved
    n = x * r
    dn = dy * g
    return r * (dn - n * (dn * n).mean(-1, keepdims=True)), (dy * n).reshape(-1, D).sum(0)


def heads(x):
    return x.reshape(B, T, H, HD).transpose(0, 2, 1, 3)


def unheads(x):
    return x.transpose(0, 2, 1, 3).reshape(B * T, D)


def step(w, x, y):
    """the loss and the gradients"""
    g, saved = {}, []
    h = w["embed"][x]
    for i in range(L):
        n1, s1 = rms(h, w[f"n1.{i}"])
        q, k, v = (heads(a) for a in np.split(n1 @ w[f"qkv.{i}"], 3, -1))
        q, k = rope(q, 1), rope(k, 1)
        s = q @ k.transpose(0, 1, 3, 2) * f32(HD ** -0.5) + MASK
        s = np.exp(s - s.max(-1, keepdims=True))
        p = s / s.sum(-1, keepdims=True)
        a = unheads(p @ v)
        h = h + a @ w[f"proj.{i}"]
        n2, s2 = rms(h, w[f"n2.{i}"])
        u, t = np.split(n2 @ w[f"up.{i}"], 2, -1)
        sig = 1 / (1 + np.exp(-u))
        m = u * sig * t
        h = h + m @ w[f"down.{i}"]
        saved.append((n1, s1, q, k, v, p, a, n2, s2, u, t, sig, m))
    hn, sn = rms(h, w["norm"])
    z = hn @ w["embed"].T
    z -= z.max(-1, keepdims=True)
    e = np.exp(z)
    p = e / e.sum(-1, keepdims=True)
    rows = np.arange(B * T)
    loss = -np.log(p[rows, y]).mean()
    p[rows, y] -= 1
    p /= f32(B * T)
    g["embed"] = p.T @ hn
    dh, g["norm"] = rms_back(p @ w["embed"], sn)
    for i in reversed(range(L)):
        n1, s1, q, k, v, p, a, n2, s2, u, t, sig, m = saved[i]
        g[f"down.{i}"] = m.T @ dh
        dm = dh @ w[f"down.{i}"].T
        du = dm * t * sig * (1 + u * (1 - sig))
        dup = np.concatenate((du, dm * u * sig), -1)
        g[f"up.{i}"] = n2.T @ dup
        d, g[f"n2.{i}"] = rms_back(dup @ w[f"up.{i}"].T, s2)
        dh = dh + d
        g[f"proj.{i}"] = a.T @ dh
        da = heads(dh @ w[f"proj.{i}"].T)
        dv = p.transpose(0, 1, 3, 2) @ da
        dp = da @ v.transpose(0, 1, 3, 2)
        ds = p * (dp - (dp * p).sum(-1, keepdims=True)) * f32(HD ** -0.5)
        dq, dk = rope(ds @ k, -1), rope(ds.transpose(0, 1, 3, 2) @ q, -1)
        dqkv = np.concatenate([unheads(c) for c in (dq, dk, dv)], -1)
        g[f"qkv.{i}"] = n1.T @ dqkv
        d, g[f"n1.{i}"] = rms_back(dqkv @ w[f"qkv.{i}"].T, s1)
        dh = dh + d
    np.add.at(g["embed"], x, dh)
    return loss, g


def main():
    text = np.frombuffer(open(sys.argv[1], "rb").read(), np.uint8)
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 10
    w = init()
    m = {k: np.zeros_like(v) for k, v in w.items()}
    v = {k: np.zeros_like(a) for k, a in w.items()}
    begin, n = time.time(), 0
    while time.time() < begin + seconds:
        at = rng.integers(0, len(text) - T, B)
        batch = np.stack([text[i:i + T + 1] for i in at])
        loss, g = step(w, batch[:, :-1].ravel(), batch[:, 1:].ravel())
        n += 1
        norm = sum(float((a * a).sum()) for a in g.values()) ** 0.5
        clip = f32(min(1, 1 / norm))
        lr = LR * min(1, n / 50)
        for k, a in g.items():
            a = a * clip
            m[k] = B1 * m[k] + (1 - B1) * a
            v[k] = B2 * v[k] + (1 - B2) * a * a
            mh, vh = m[k] / (1 - B1 ** n), v[k] / (1 - B2 ** n)
            decay = WD if w[k].ndim > 1 else 0
            w[k] = (w[k] - lr * (mh / (np.sqrt(vh) + 1e-8) + decay * w[k])).astype(f32)
        if n % 50 == 0:
            print(f"step {n}, loss {loss:.3f}", file=sys.stderr)
    print(f"{n * B * T / (time.time() - begin):.0f} tokens/s")


main()
