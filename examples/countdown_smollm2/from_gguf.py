"""Turn a GGUF file into a folder with safetensors, a tokenizer and its chat template. usage: from_gguf.py FILE.gguf OUT

The weights come out dequantised to bfloat16. GGUF files often name the wrong end token; the one that the chat template
writes after an assistant's turn is the right one, so it is set here.
"""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

source, target = Path(sys.argv[1]), Path(sys.argv[2])
tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
model = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.bfloat16)
# The weights are plain numbers now; without this, saving insists on the quantisation they came from.
model.hf_quantizer = None
if hasattr(model.config, "quantization_config"):
    del model.config.quantization_config

turn = tokenizer.apply_chat_template(
    [{"role": "user", "content": "ping"}, {"role": "assistant", "content": "pong"}], tokenize=False
)
tail = tokenizer(turn.rsplit("pong", 1)[1], add_special_tokens=False)["input_ids"]
tokenizer.eos_token = tokenizer.convert_ids_to_tokens(tail[0])
tokenizer.pad_token = tokenizer.eos_token
model.config.eos_token_id = model.generation_config.eos_token_id = tokenizer.eos_token_id
model.save_pretrained(target)
tokenizer.save_pretrained(target)
sys.stderr.write(f"{target}: {sum(p.numel() for p in model.parameters()):,} parameters, end {tokenizer.eos_token}\n")
