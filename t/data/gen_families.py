#!/usr/bin/env python3
"""t/data/gen_families.py - small random checkpoints of the families of models, made by Hugging
Face's transformers, the loss that it computes from each in FP32, and the norm of the gradient.

  python3 t/data/gen_families.py t/data     needs torch, transformers, safetensors

Writes fam_NAME.json (the config) and fam_NAME.safetensors, prints a name, a loss and a norm a line.
t/tools/t8018-te_train-families.t reads them.
"""
import json
import shutil
import sys
import tempfile

import torch
import transformers as tf

T = 16
TEXT = b"It was the best of times, it was the worst of times, it was the age of wisdom.\n"
LLAMA = dict(vocab_size=123, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
             num_key_value_heads=1, intermediate_size=24, max_position_embeddings=64,
             initializer_range=0.3, tie_word_embeddings=True, pad_token_id=0)


def rope(kind, **more):
    return dict(rope_type=kind, rope_theta=100.0, **more)


# heads as wide as those of published Gemma models
WIDE = dict(LLAMA, hidden_size=8, intermediate_size=8, head_dim=256)
SHORT = [1.0, 1.5, 2.0, 3.0]
# every feature that a family has is on
CASES = {
    "llama3": (tf.LlamaConfig, dict(LLAMA, attention_bias=True, mlp_bias=True,
               rope_parameters=rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                    original_max_position_embeddings=16))),
    "linear": (tf.LlamaConfig, dict(LLAMA, rope_parameters=rope("linear", factor=3.0))),
    "yarn": (tf.LlamaConfig, dict(LLAMA, rope_parameters=rope(
        "yarn", factor=4.0, original_max_position_embeddings=16, beta_fast=2.0, beta_slow=0.5))),
    "mistral": (tf.MistralConfig, dict(LLAMA, head_dim=6, sliding_window=16,
                                       rope_parameters=rope("default"))),
    "smollm3": (tf.SmolLM3Config, dict(LLAMA, no_rope_layer_interval=2, attention_bias=True,
                                       rope_parameters=rope("default"))),
    "phi3": (tf.Phi3Config, dict(LLAMA, tie_word_embeddings=False,
             original_max_position_embeddings=16, rope_parameters=rope(
                 "longrope", short_factor=SHORT, long_factor=[4.0, 5.0, 6.0, 7.0]))),
    "neox": (tf.GPTNeoXConfig, dict(LLAMA, rope_parameters=rope("default",
                                                                partial_rotary_factor=0.5))),
    "neox_serial": (tf.GPTNeoXConfig, dict(LLAMA, use_parallel_residual=False,
                                           rope_parameters=rope("default",
                                                                partial_rotary_factor=0.25))),
    "falcon": (tf.FalconConfig, dict(LLAMA, num_kv_heads=2, bias=True,
                                     rope_parameters=rope("default"))),
    "stablelm": (tf.StableLmConfig, dict(LLAMA, use_qkv_bias=True, rope_parameters=rope(
        "default", partial_rotary_factor=0.5))),
    "stablelm_parallel": (tf.StableLmConfig, dict(LLAMA, use_parallel_residual=True,
                          rope_parameters=rope("default", partial_rotary_factor=0.25))),
    "qwen3": (tf.Qwen3Config, dict(LLAMA, head_dim=6, attention_bias=True,
                                   rope_parameters=rope("default"))),
    "olmo2": (tf.Olmo2Config, dict(LLAMA, attention_bias=True, rope_parameters=rope("default"))),
    "gemma2": (tf.Gemma2Config, dict(LLAMA, head_dim=6, attention_bias=True, sliding_window=5,
               query_pre_attn_scalar=10, attn_logit_softcapping=2.0, final_logit_softcapping=3.0,
               rope_parameters=rope("default"))),
    "gemma3": (tf.Gemma3TextConfig, dict(LLAMA, head_dim=6, attention_bias=True, sliding_window=5,
               query_pre_attn_scalar=10, final_logit_softcapping=3.0,
               layer_types=["sliding_attention", "full_attention"], rope_parameters={
                   "sliding_attention": rope("default"),
                   "full_attention": dict(rope("linear", factor=3.0), rope_theta=1000.0)})),
    "gemma2_wide": (tf.Gemma2Config, dict(WIDE, sliding_window=5, query_pre_attn_scalar=256,
                    rope_parameters=rope("default"))),
    "gemma3_wide": (tf.Gemma3TextConfig, dict(WIDE, sliding_window=5, query_pre_attn_scalar=256,
                    layer_types=["sliding_attention", "full_attention"], rope_parameters={
                        "sliding_attention": rope("default"),
                        "full_attention": dict(rope("linear", factor=8.0), rope_theta=1e6)})),
    # as llama.cpp has them, for t/tools/t8031-te_export.t
    "qwen3_plain": (tf.Qwen3Config, dict(LLAMA, head_dim=6, rope_parameters=rope("default"))),
    "olmo2_plain": (tf.Olmo2Config, dict(LLAMA, rope_parameters=rope("default"))),
    "falcon_plain": (tf.FalconConfig, dict(LLAMA, bias=False, rope_parameters=rope("default"))),
    "smollm3_four": (tf.SmolLM3Config, dict(LLAMA, num_hidden_layers=4, hidden_size=8,
                     no_rope_layer_interval=4, rope_parameters=rope("default"))),
    "gemma2_plain": (tf.Gemma2Config, dict(LLAMA, head_dim=6, sliding_window=5,
                     query_pre_attn_scalar=6, attn_logit_softcapping=2.0,
                     final_logit_softcapping=3.0, rope_parameters=rope("default"))),
    "gemma3_six": (tf.Gemma3TextConfig, dict(LLAMA, num_hidden_layers=6, hidden_size=8, head_dim=6,
                   sliding_window=5, query_pre_attn_scalar=6, rope_parameters={
                       "sliding_attention": rope("default"),
                       "full_attention": dict(rope("linear", factor=3.0), rope_theta=1000.0)})),
    "gpt2_erf": (tf.GPT2Config, dict(vocab_size=123, n_embd=16, n_layer=2, n_head=2, n_positions=T,
                                     initializer_range=0.3, activation_function="gelu",
                                     embd_pdrop=0.0, resid_pdrop=0.0, attn_pdrop=0.0)),
}


def main(folder):
    text = torch.tensor(list(TEXT))
    for name, (kind, fields) in CASES.items():
        torch.manual_seed(7)
        fields = dict(fields)
        if kind in (tf.GPTNeoXConfig, tf.FalconConfig):
            fields.pop("num_key_value_heads")
        if kind is tf.FalconConfig:
            fields.pop("intermediate_size")
        model = tf.AutoModelForCausalLM.from_config(kind(**fields), dtype=torch.float32,
                                                      attn_implementation="eager").eval()
        for p in model.parameters():
            if p.ndim == 1:
                p.data += 0.2 * torch.randn_like(p)
        total, n, first = 0.0, 0, None
        for s in range(0, len(text) - 1, T):
            y = text[s + 1 : s + 1 + T]
            logits = model(text[s : s + len(y)][None]).logits[0]
            loss = torch.nn.functional.cross_entropy(logits, y, reduction="sum")
            if first is None:
                (loss / len(y)).backward()
                first = sum((p.grad ** 2).sum() for p in model.parameters()) ** 0.5
            total, n = total + loss.item(), n + len(y)
        with tempfile.TemporaryDirectory() as d:
            model.save_pretrained(d)
            shutil.copy(d + "/model.safetensors", f"{folder}/fam_{name}.safetensors")
            config = json.load(open(d + "/config.json"))
        config.pop("transformers_version", None)
        with open(f"{folder}/fam_{name}.json", "w") as out:
            out.write(json.dumps(dict(config, _name_or_path="t/data/gen_families.py")) + "\n")
        print(name, total / n, first.item())


main(sys.argv[1])
