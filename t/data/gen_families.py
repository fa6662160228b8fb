#!/usr/bin/env python3
"""t/data/gen_families.py - small random checkpoints of the families of models, made by Hugging
Face's transformers, the loss that it computes from each in FP32, the norm of the gradient, and
greedy text.

  python3 t/data/gen_families.py t/data [NAME...]     needs torch, transformers, safetensors
  python3 t/data/gen_families.py t/data --greedy >t/data/fam_greedy.txt
  python3 t/data/gen_families.py t/data --check BUILD/tools

Writes fam_NAME.json (the config) and fam_NAME.safetensors, prints a name, a loss and a norm a line.
t/tools/t8018-te_train-families.t reads them. With --greedy it writes nothing, and prints the name,
the prompt's tokens and the 100 tokens that follow, of each file that is there. With --check it
compares te_train and te_generate with transformers in both directions: loss and greedy text of
each file, and of what te_train saves from it.
"""
import glob
import json
import os
import re
import shutil
import subprocess
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
PENALTY = 1.2  # without one, random weights repeat a few tokens
# every feature that a family has is on
CASES = {
    "gpt2": (tf.GPT2Config, dict(vocab_size=123, n_embd=16, n_layer=2, n_head=2, n_positions=128,
                                 n_inner=24, initializer_range=0.3, embd_pdrop=0.0,
                                 resid_pdrop=0.0, attn_pdrop=0.0)),
    "llama2": (tf.LlamaConfig, dict(LLAMA, num_key_value_heads=2, tie_word_embeddings=False,
                                    rope_parameters=rope("default"))),
    "tinyllama": (tf.LlamaConfig, dict(LLAMA, num_attention_heads=4, num_key_value_heads=2,
                                       tie_word_embeddings=False,
                                       rope_parameters=rope("default"))),
    "qwen2": (tf.Qwen2Config, dict(LLAMA, use_sliding_window=True, sliding_window=16,
                                   max_window_layers=1, rope_parameters=rope("default"))),
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


def text_loss(model):
    """the mean over TEXT in windows of T, and the norm of the first window's gradient"""
    text = torch.tensor(list(TEXT))
    total, n, norm = 0.0, 0, None
    for s in range(0, len(text) - 1, T):
        y = text[s + 1 : s + 1 + T]
        logits = model(text[s : s + len(y)][None]).logits[0]
        loss = torch.nn.functional.cross_entropy(logits, y, reduction="sum")
        if norm is None:
            (loss / len(y)).backward()
            norm = sum((p.grad ** 2).sum() for p in model.parameters()) ** 0.5
        total, n = total + loss.item(), n + len(y)
    return total / n, norm.item()


def write(folder, names):
    for name, (kind, fields) in CASES.items():
        if names and name not in names:
            continue
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
        with tempfile.TemporaryDirectory() as d:
            model.save_pretrained(d)
            shutil.copy(d + "/model.safetensors", f"{folder}/fam_{name}.safetensors")
            config = json.load(open(d + "/config.json"))
        config.pop("transformers_version", None)
        with open(f"{folder}/fam_{name}.json", "w") as out:
            out.write(json.dumps(dict(config, _name_or_path="t/data/gen_families.py")) + "\n")
        print(name, *text_loss(model))


def load(folder):
    return tf.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32,
                                                   attn_implementation="eager").eval()


def unpack(folder, name, d, longer):
    """a folder of the files of NAME, with places for the greedy text if it is to be longer"""
    config = open(f"{folder}/fam_{name}.json").read()
    if longer:  # t/tools/t8018-te_train-families.t does the same
        config = config.replace('"max_position_embeddings": 64', '"max_position_embeddings": 192')
        if name == "phi3":
            config = config.replace('"original_max_position_embeddings": 16',
                                    '"original_max_position_embeddings": 128')
    os.makedirs(d, exist_ok=True)
    open(d + "/config.json", "w").write(config)
    shutil.copy(f"{folder}/fam_{name}.safetensors", d + "/model.safetensors")


def greedy(model, prompt, penalty):
    """100 tokens, and the smallest lead of the most likely one over the second"""
    out = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=100,
                         repetition_penalty=penalty, eos_token_id=None, pad_token_id=0,
                         return_dict_in_generate=True, output_scores=True)
    top = torch.stack(out.scores).topk(2).values
    return out.sequences[0, len(prompt):].tolist(), (top[..., 0] - top[..., 1]).min().item()


def files(folder):
    return sorted(re.sub(".*/fam_(.*).json", r"\1", f) for f in glob.glob(folder + "/fam_*.json"))


def write_greedy(folder):
    for name in files(folder):
        with tempfile.TemporaryDirectory() as d:
            unpack(folder, name, d, True)
            model = load(d)
        if getattr(model.config, "n_positions", 128) < 128 or re.search("_(plain|four|six)", name):
            continue
        ends = model.config.eos_token_id
        best = None
        # a prompt with a text that varies, has no close decisions, and no end token
        for s in range(0, 60, 6):
            if best is not None and best[0] >= 12:
                break
            prompt = list(TEXT[s : s + 6])
            tokens, lead = greedy(model, prompt, PENALTY)
            if lead > 4e-3 and ends not in tokens and (best is None or len(set(tokens)) > best[0]):
                best = len(set(tokens)), prompt, tokens, lead
        print(name, ",".join(map(str, best[1])), ",".join(map(str, best[2])), flush=True)
        print(name, best[0], "different tokens, smallest lead", best[3], file=sys.stderr)


def check(folder, tools):
    text = tempfile.NamedTemporaryFile(suffix=".txt")
    text.write(TEXT)
    text.flush()
    golden = {n: (p, t) for n, p, t in (l.split() for l in open(folder + "/fam_greedy.txt"))}
    bad = 0

    def run(*args):
        return subprocess.run(args, check=True, capture_output=True, text=True).stdout

    def ours(d, out):
        args = [tools + "/te_train/te_train", "--init", d, "--steps", "0", "--eval-batches", "0",
                "--val", text.name, "--json", "--recipe", "fp32", "--seq-len", str(T), "--out", out,
                text.name]
        return json.loads(run(*args))["val_loss_nats"]

    def ours_greedy(d, prompt, penalty):
        o = json.loads(run(tools + "/te_generate", "--model", d, "--recipe", "fp32",
                           "--prompt-tokens", prompt, "-n", "100", "--json",
                           "--repetition-penalty", str(penalty)))
        return ",".join(map(str, o["texts"][0]["tokens"]))

    def theirs_greedy(d, prompt, penalty):
        out = greedy(load(d), [int(t) for t in prompt.split(",")], penalty)[0]
        return ",".join(map(str, out))

    for name in files(folder):
        with tempfile.TemporaryDirectory() as d:
            unpack(folder, name, d + "/a", False)
            theirs = text_loss(load(d + "/a"))[0]
            row = [abs(ours(d + "/a", d + "/b") - theirs)]
            row += [abs(text_loss(load(d + "/b"))[0] - theirs), abs(ours(d + "/b", d + "/c") - theirs)]
            same = []
            if name in golden:
                prompt, want = golden[name]
                unpack(folder, name, d + "/g", True)
                ours(d + "/g", d + "/h")
                for x in "gh":
                    same += [ours_greedy(d + "/" + x, prompt, PENALTY) == want,
                             theirs_greedy(d + "/" + x, prompt, PENALTY) == want]
                # ours may end earlier, at an end token
                same.append(theirs_greedy(d + "/g", prompt, 1.0)
                            .startswith(ours_greedy(d + "/g", prompt, 1.0)))
            wrong = max(row) > 2e-5 or not all(same)
            bad += wrong
            print(f"{name:20} loss: we, they from ours, we again: {row[0]:.1e} {row[1]:.1e} "
                  f"{row[2]:.1e}; greedy: we, they, from ours we, "
                  "they, plain we = they:", *same,
                  "BAD" if wrong else "", flush=True)
    return bad


if sys.argv[2:3] == ["--greedy"]:
    write_greedy(sys.argv[1])
elif sys.argv[2:3] == ["--check"]:
    sys.exit(1 if check(sys.argv[1], sys.argv[3]) else 0)
else:
    write(sys.argv[1], sys.argv[2:])
