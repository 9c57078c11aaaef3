"""A tiny transformer for `train_grpo.py`, with a tokenizer and a chat template of its own.

It is small enough to be trained from scratch on a CPU.
"""

from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import render_jinja_template

# Calls have Qwen's format. The functions aren't listed, because the model learns them from demonstrations.
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.role == 'assistant' %}{% generation %}{{ message.content }}"
    "{% for call in message.tool_calls or [] %}<tool_call>"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}'
    "</tool_call>{% endfor %}<|im_end|>{% endgeneration %}"
    "{% else %}{{ message.content }}<|im_end|>{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tiny_tokenizer(conversations: list[Any]) -> PreTrainedTokenizerFast:
    """Return a tokenizer that is trained on conversations. Most words of these conversations become one token."""
    special = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "bos_token": "<|im_start|>"}
    tokenizer = Tokenizer(models.BPE())
    words = [pre_tokenizers.Split(" ", "merged_with_next"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Sequence(words), decoders.ByteLevel()
    alphabet = {"initial_alphabet": pre_tokenizers.ByteLevel.alphabet(), "special_tokens": [*special.values()]}
    texts, _ = render_jinja_template(conversations, chat_template=TEMPLATE)
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=1024, show_progress=False, **alphabet))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


def tiny_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Return an untrained transformer with 1.2 million parameters."""
    sizes = {"hidden_size": 192, "intermediate_size": 576, "num_hidden_layers": 2, "num_attention_heads": 6}
    ids = {name: getattr(tokenizer, name) for name in ("eos_token_id", "pad_token_id", "bos_token_id")}
    return LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), tie_word_embeddings=True, **sizes, **ids))
