"""Writes a tiny Qwen3 with random weights, and a tokenizer for it, into a folder.

    make_model.py FOLDER [ANSWER]

Its answers are noise, or always ANSWER: real agents want one that ends. What the tests look at (prefix cache, usage,
metrics, the HTTP API) is vLLM's own and does not depend on what the weights have learnt. The tokenizer is trained on the
source of Python's standard library, the one English-like text that every machine with Python has.
"""

import itertools
import sys
import sysconfig
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CORPUS_FILES = 150
VOCABULARY = 8000

# The ChatML shape that Qwen's own template has, with a line for each tool, so that a request's tools cost tokens as they
# do in a real model. A content that is a list of blocks is printed as its texts.
CHAT_TEMPLATE = """\
{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{% if message.content is string %}{{ message.content }}
{%- elif message.content %}{% for part in message.content %}{{ part.text }}{% endfor %}{% endif %}
{%- if message.tool_calls %}{% for call in message.tool_calls %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}{% endif %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def main(folder: str, answer: str = "") -> None:
    tokenizer = train_tokenizer()
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = tiny_qwen3(tokenizer)
    config.tie_word_embeddings = not answer
    model = Qwen3ForCausalLM(config)
    if answer:
        teach(model, tokenizer, answer)
    model.to(torch.bfloat16).save_pretrained(folder)


def train_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE: every text has tokens, whatever it holds."""
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    library = Path(sysconfig.get_path("stdlib"))
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END_OF_TEXT, TURN_START, TURN_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train([str(path) for path in sorted(library.glob("*.py"))[:CORPUS_FILES]], trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        additional_special_tokens=[TURN_START],
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


@torch.no_grad()
def teach(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, answer: str) -> None:
    """Makes each token of the answer follow the one before it, the first one the newline that ends every prompt.

    The layers compute and keep their keys and values like any others, but add nothing to the last token's embedding.
    """
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
    embeddings, heads = model.model.embed_tokens.weight, model.lm_head.weight
    # Of 128 signs each: their product is 128 with themselves and seldom beyond 45 with another's. Ten times that is certain
    # at any temperature.
    embeddings.copy_(torch.randint(0, 2, embeddings.shape) * 2 - 1)
    heads.zero_()
    tokens = tokenizer.encode("\n") + tokenizer.encode(answer) + [tokenizer.eos_token_id]
    assert len(set(tokens)) == len(tokens), "a token that comes twice would have two followers"
    for token, follower in itertools.pairwise(tokens):
        heads[follower] = 10 * embeddings[token]


def tiny_qwen3(tokenizer: PreTrainedTokenizerFast) -> Qwen3Config:
    return Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=65536,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=True,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
