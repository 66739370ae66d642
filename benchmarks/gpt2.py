"""transformers' GPT-2 of a tinylm model's size, to measure against."""

from __future__ import annotations

from transformers import GPT2Config, GPT2LMHeadModel

from tinylm.config import ModelConfig


def gpt2(config: ModelConfig) -> GPT2LMHeadModel:
    """Random weights; the same width, depth, heads, feed-forward, vocabulary and context, and no dropout."""
    sizes = GPT2Config(
        vocab_size=config.vocab_size,
        n_positions=config.max_seq_len,
        n_embd=config.d_model,
        n_layer=config.n_layers,
        n_head=config.n_heads,
        n_inner=config.d_ff,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(sizes)
