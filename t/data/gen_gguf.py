#!/usr/bin/env python3
"""t/data/gen_gguf.py - a small random Llama in a GGUF file that has each type of numbers, and the
loss that Hugging Face's transformers computes from the dequantized weights in FP32.

  python3 t/data/gen_gguf.py t    needs torch, transformers, gguf

Writes t/data/llama.gguf and t/fuzz/corpus/gguf/tiny, prints the loss.
t/tools/t8018-te_train-families.t reads the first.
"""
import sys

import gguf
import numpy as np
import torch
import transformers as tf

T = 16
TEXT = b"It was the best of times, it was the worst of times, it was the age of wisdom.\n"
Q = gguf.GGMLQuantizationType
NAMES = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
         "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
         "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
         "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}


def rename(name):
    for hf, g in (("model.embed_tokens", "token_embd"), ("model.norm", "output_norm"),
                  ("lm_head", "output")):
        if name.startswith(hf + "."):
            return g + ".weight"
    layer, rest = name[len("model.layers."):].split(".", 1)
    return f"blk.{layer}.{NAMES[rest[:-len('.weight')]]}.weight"


def permute(w, heads):
    return w.reshape(heads, 2, -1, w.shape[-1]).swapaxes(1, 2).reshape(w.shape)


def header(w, layers, width, inner, heads, kv):
    w.add_context_length(64)
    w.add_embedding_length(width)
    w.add_block_count(layers)
    w.add_feed_forward_length(inner)
    w.add_head_count(heads)
    w.add_head_count_kv(kv)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_rope_freq_base(100.0)
    w.add_token_list(["a", "b"])
    w.add_bool("te.truth", True)


def finish(w):
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def main(folder):
    torch.manual_seed(7)
    model = tf.LlamaForCausalLM(tf.LlamaConfig(
        vocab_size=123, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, intermediate_size=64, max_position_embeddings=64, rms_norm_eps=1e-5,
        initializer_range=0.2, tie_word_embeddings=False,
        rope_parameters=dict(rope_type="default", rope_theta=100.0))).float().eval()
    w = gguf.GGUFWriter(f"{folder}/data/llama.gguf", "llama")
    header(w, 2, 32, 64, 2, 1)
    types = [Q.Q8_0, Q.Q4_0, Q.Q4_1, Q.F16, Q.BF16, Q.F32]
    n = 0
    for name, p in model.named_parameters():
        x = p.detach().numpy()
        kind = Q.F32
        if x.ndim == 2:
            kind, n = types[n % len(types)], n + 1
        heads = {"q_proj": 2, "k_proj": 1}.get(name.split(".")[-2], 0)
        if heads:
            x = permute(x, heads)
        q = gguf.quants.quantize(np.ascontiguousarray(x), kind)
        w.add_tensor(rename(name), q, raw_dtype=kind)
        x = gguf.quants.dequantize(q, kind).reshape(p.shape)
        if heads:
            x = x.reshape(heads, -1, 2, x.shape[-1]).swapaxes(1, 2).reshape(x.shape)
        p.data = torch.tensor(np.array(x, np.float32))
    finish(w)
    w = gguf.GGUFWriter(f"{folder}/fuzz/corpus/gguf/tiny", "llama")
    header(w, 1, 32, 8, 1, 1)
    w.add_tensor("token_embd.weight", gguf.quants.quantize(np.ones((2, 32), np.float32), Q.Q4_1),
                 raw_dtype=Q.Q4_1)
    w.add_tensor("blk.0.attn_norm.weight", np.ones(4, np.float32))
    finish(w)
    text = torch.tensor(list(TEXT))
    total = 0.0
    for s in range(0, len(text) - 1, T):
        y = text[s + 1 : s + 1 + T]
        logits = model(text[s : s + len(y)][None]).logits[0]
        total += torch.nn.functional.cross_entropy(logits, y, reduction="sum").item()
    print(total / (len(text) - 1))


main(sys.argv[1])
