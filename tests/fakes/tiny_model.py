"""Makes a tiny chat model whose answer is known, as a GGUF file for llama.cpp.

A real Llama with weights set by hand: a chain of words. Whatever the prompt, the greedy answer is
ANSWER and an end of turn, 8 tokens in all. The tokenizer has one token per UTF-8 byte plus ChatML's
marks, so that prompt tokens can be counted exactly. More layers make it slower. Under a second and
half a megabyte; needs numpy and gguf only.
"""

from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

ANSWER = "Hello from the tiny test model."
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
WORDS = ["Hello", "Ġfrom", "Ġthe", "Ġtiny", "Ġtest", "Ġmodel", "."]  # Ġ is how a vocabulary writes a space
WIDTH, INNER, HEADS, CONTEXT, END_OF_TURN = 64, 128, 2, 2048, 2
OTHER, CONSTANT = 60, 63  # hidden dimensions with a meaning of their own
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
Array = npt.NDArray[np.float32]


def make_tiny_model(folder: Path, *, layers: int = 2) -> Path:
    """Write `model.gguf` into the folder (made if missing) and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "model.gguf"
    tokens, _ = vocabulary()
    out = gguf.GGUFWriter(str(file), "llama")
    out.add_name("heteroflow-tiny")
    out.add_file_type(gguf.LlamaFileType.ALL_F32)
    out.add_context_length(CONTEXT)
    out.add_embedding_length(WIDTH)
    out.add_block_count(layers)
    out.add_feed_forward_length(INNER)
    out.add_head_count(HEADS)
    out.add_head_count_kv(HEADS)
    out.add_rope_dimension_count(WIDTH // HEADS)
    out.add_layer_norm_rms_eps(1e-5)
    out.add_vocab_size(len(tokens))
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("gpt-2")
    out.add_token_list(tokens)
    ordinary = len(tokens) - len(SPECIALS)
    out.add_token_types([gguf.TokenType.CONTROL] * len(SPECIALS) + [gguf.TokenType.NORMAL] * ordinary)
    out.add_token_merges(["a b"])  # the loader wants one; "ab" is no token, so it never applies
    out.add_bos_token_id(0)
    out.add_eos_token_id(END_OF_TURN)
    out.add_pad_token_id(0)
    out.add_add_bos_token(False)
    out.add_chat_template(TEMPLATE)
    for name, array in tensors(layers).items():
        out.add_tensor(name, array)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return file


def vocabulary() -> tuple[list[str], dict[str, int]]:
    """All tokens, and the ids of the chain's words."""
    letters = byte_letters()
    first = len(SPECIALS) + len(letters)
    # "." is a byte's token already: its place in the word list is taken by a stand-in
    words = ["<.>" if word == "." else word for word in WORDS]
    ids = {word: first + i for i, word in enumerate(WORDS)}
    ids["."] = len(SPECIALS) + letters.index(".")
    return SPECIALS + letters + words, ids


def byte_letters() -> list[str]:
    """GPT-2's printable stand-in for each of the 256 byte values."""
    own = set(range(33, 127)) | set(range(161, 173)) | set(range(174, 256))
    spare = iter(range(256, 512))
    return [chr(byte) if byte in own else chr(next(spare)) for byte in range(256)]


def tensors(layers: int) -> dict[str, Array]:
    """Each word's embedding is a dimension of its own; the output layer maps it to the next word.
    Attention and feed-forward add nothing."""
    tokens, ids = vocabulary()
    chain = [ids[word] for word in WORDS]
    place = {token: i for i, token in enumerate(chain)}
    embed = np.zeros((len(tokens), WIDTH), np.float32)
    output = np.zeros((len(tokens), WIDTH), np.float32)
    for token in range(len(tokens)):
        embed[token, place.get(token, OTHER)] = embed[token, CONSTANT] = 1
    output[chain[0], OTHER] = 8
    for i, following in enumerate(chain[1:]):
        output[following, i] = 8
    output[END_OF_TURN, place[chain[-1]]] = 8
    output[chain[0], place[chain[-1]]] = 6  # taken when the end of turn is ignored
    made = {"token_embd.weight": embed, "output.weight": output, "output_norm.weight": ones()}
    for layer in range(layers):
        block = f"blk.{layer}."
        made[block + "attn_norm.weight"] = made[block + "ffn_norm.weight"] = ones()
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            made[f"{block}{name}.weight"] = np.zeros((WIDTH, WIDTH), np.float32)
        made[block + "ffn_gate.weight"] = made[block + "ffn_up.weight"] = np.zeros((INNER, WIDTH), np.float32)
        made[block + "ffn_down.weight"] = np.zeros((WIDTH, INNER), np.float32)
    return made


def ones() -> Array:
    return np.ones(WIDTH, np.float32)
