#!/usr/bin/env python3
"""t/data/gen_hf.py - small checkpoints as Hugging Face's transformers names and shapes them, and
the loss each gives on a text, computed here in FP64 from the published formulas of GPT-2
(Radford et al. 2019), Llama (Touvron et al. 2023) and Qwen2 (Yang et al. 2024).

  python3 t/data/gen_hf.py t/data     needs numpy, ml_dtypes, safetensors

Writes hf_FAMILY.json (the config) and hf_FAMILY.safetensors, prints the losses.
t/tools/t8006-te_train-golden.t reads them.
"""
import json
import sys

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

T = 16
TEXT = b"It was the best of times, it was the worst of times, it was the age of wisdom.\n"


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def attention(q, k, v):
    n = q.shape[1]
    k, v = (np.repeat(z, q.shape[0] // z.shape[0], 0) for z in (k, v))
    s = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1])
    o = softmax(np.where(np.tril(np.ones((n, n))) > 0, s, -np.inf)) @ v
    return o.transpose(1, 0, 2).reshape(n, -1)


def heads(x, n):
    return x.reshape(len(x), n, -1).transpose(1, 0, 2)


def gpt2(c, w, t):
    def norm(x, name):
        d = x - x.mean(-1, keepdims=True)
        d = d / np.sqrt(x.var(-1, keepdims=True) + c["layer_norm_epsilon"])
        return d * w[name + ".weight"] + w[name + ".bias"]

    def conv1d(x, name):
        return x @ w[name + ".weight"] + w[name + ".bias"]

    x = w["transformer.wte.weight"][t] + w["transformer.wpe.weight"][: len(t)]
    for i in range(c["n_layer"]):
        b = f"transformer.h.{i}."
        y = np.split(conv1d(norm(x, b + "ln_1"), b + "attn.c_attn"), 3, -1)
        x = x + conv1d(attention(*(heads(z, c["n_head"]) for z in y)), b + "attn.c_proj")
        y = conv1d(norm(x, b + "ln_2"), b + "mlp.c_fc")
        y = 0.5 * y * (1 + np.tanh(np.sqrt(2 / np.pi) * (y + 0.044715 * y**3)))
        x = x + conv1d(y, b + "mlp.c_proj")
    return norm(x, "transformer.ln_f") @ w["transformer.wte.weight"].T


def llama(c, w, t):
    def norm(x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + c["rms_norm_eps"]) * w[name]

    def linear(x, name):
        return x @ w[name + ".weight"].T + w.get(name + ".bias", 0)

    nq, nkv = c["num_attention_heads"], c["num_key_value_heads"]
    d = c.get("head_dim", c["hidden_size"] // nq)
    angle = np.arange(len(t))[:, None] * c["rope_theta"] ** (-np.arange(0, d, 2) / d)
    angle = np.concatenate([angle, angle], -1)

    def rope(z):
        half = np.concatenate([-z[..., d // 2 :], z[..., : d // 2]], -1)
        return z * np.cos(angle) + half * np.sin(angle)

    x = w["model.embed_tokens.weight"][t]
    for i in range(c["num_hidden_layers"]):
        b = f"model.layers.{i}."
        y = norm(x, b + "input_layernorm.weight")
        q = rope(heads(linear(y, b + "self_attn.q_proj"), nq))
        k = rope(heads(linear(y, b + "self_attn.k_proj"), nkv))
        v = heads(linear(y, b + "self_attn.v_proj"), nkv)
        x = x + linear(attention(q, k, v), b + "self_attn.o_proj")
        y = norm(x, b + "post_attention_layernorm.weight")
        g = linear(y, b + "mlp.gate_proj")
        x = x + linear(g / (1 + np.exp(-g)) * linear(y, b + "mlp.up_proj"), b + "mlp.down_proj")
    y = norm(x, "model.norm.weight")
    return y @ w.get("lm_head.weight", w["model.embed_tokens.weight"]).T


def loss(f, c, w):
    t = np.frombuffer(TEXT, np.uint8).astype(int)
    nats, n = 0.0, 0
    for s in range(0, len(t) - 1, T):
        y = t[s + 1 : s + 1 + T]
        p = softmax(f(c, w, t[s : s + len(y)]))
        nats -= np.log(p[np.arange(len(y)), y]).sum()
        n += len(y)
    return nats / n


def main(folder):
    rng = np.random.default_rng(7)
    common = {"vocab_size": 123, "architectures": ["x"], "torch_dtype": "float32"}
    g = dict(common, model_type="gpt2", n_embd=16, n_layer=2, n_head=2, n_positions=T, n_inner=48,
             activation_function="gelu_new", layer_norm_epsilon=1e-3)
    a = dict(common, model_type="llama", hidden_size=16, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, head_dim=8, intermediate_size=24, max_position_embeddings=T,
             rms_norm_eps=1e-3, rope_theta=100.0, tie_word_embeddings=False)
    q = dict(common, model_type="qwen2", hidden_size=16, num_hidden_layers=2,
             num_attention_heads=4, num_key_value_heads=1, intermediate_size=24,
             max_position_embeddings=T, rms_norm_eps=1e-3, rope_theta=1000.0,
             tie_word_embeddings=True)
    shapes = {}
    shapes["gpt2"] = {"wte.weight": (123, 16), "wpe.weight": (T, 16), "ln_f.weight": (16,),
                      "ln_f.bias": (16,)}
    for i in range(2):
        b = f"h.{i}."
        for name, n in (("ln_1", 0), ("attn.c_attn", (16, 48)), ("attn.c_proj", (16, 16)),
                        ("ln_2", 0), ("mlp.c_fc", (16, 48)), ("mlp.c_proj", (48, 16))):
            shapes["gpt2"][b + name + ".weight"] = n or (16,)
            shapes["gpt2"][b + name + ".bias"] = (n[1] if n else 16,)
    for c in (a, q):
        d = c.get("head_dim", 4)
        nq, nkv = 4 * d, c["num_key_value_heads"] * d
        s = {"model.embed_tokens.weight": (123, 16), "model.norm.weight": (16,)}
        for i in range(2):
            b = f"model.layers.{i}."
            s[b + "input_layernorm.weight"] = s[b + "post_attention_layernorm.weight"] = (16,)
            for name, n in (("q", nq), ("k", nkv), ("v", nkv)):
                s[b + f"self_attn.{name}_proj.weight"] = (n, 16)
                if c is q:
                    s[b + f"self_attn.{name}_proj.bias"] = (n,)
            s[b + "self_attn.o_proj.weight"] = (16, nq)
            s[b + "mlp.gate_proj.weight"] = s[b + "mlp.up_proj.weight"] = (24, 16)
            s[b + "mlp.down_proj.weight"] = (16, 24)
        if c is a:
            s["lm_head.weight"] = (123, 16)
        shapes[c["model_type"]] = s
    # as files of the hub come: FP32 without prefix, BF16, FP16
    for c, f, dtype in ((g, gpt2, np.float32), (a, llama, ml_dtypes.bfloat16), (q, llama, np.float16)):
        family = c["model_type"]
        w = {}
        for name, shape in shapes[family].items():
            x = rng.normal(0, 0.3, shape) + (1.0 if "norm" in name or "ln_" in name else 0.0)
            w[name] = x.astype(dtype)
        wide = {k: v.astype(np.float64) for k, v in w.items()}
        if family == "gpt2":
            wide = {"transformer." + k: v for k, v in wide.items()}
            w["h.0.attn.bias"] = np.zeros((1, 1, 4, 4), np.float32)  # a mask, in old files
        save_file(w, f"{folder}/hf_{family}.safetensors",
                  {"format": "pt", "generator": "t/data/gen_hf.py"})
        c = dict(c, _name_or_path="t/data/gen_hf.py")
        with open(f"{folder}/hf_{family}.json", "w") as out:
            out.write(json.dumps(c, indent=1) + "\n")
        print(family, float(loss(f, c, wide)))


main(sys.argv[1])
