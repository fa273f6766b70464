"""A language model of Hugging Face's transformers on one GPU, in the place and with the tensors of the llmapi model.

For measuring what a job adds to a server, on a machine without TensorRT-LLM: text is bytes, decoding is greedy, and
what waits is answered together.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton_python_backend_utils as pb_utils  # type: ignore[import-not-found]  # Triton brings it
import yaml

# Built against another numpy than the one that Triton's stub needs; transformers does without them.
sys.modules.update(dict.fromkeys(("sklearn", "scipy", "pandas")))  # type: ignore[arg-type]

from transformers import AutoModelForCausalLM  # type: ignore[import-not-found]  # noqa: E402

MOST = 16
GATHER_S = 0.02
BEGIN = 256


class TritonPythonModel:
    """One model on one GPU; a thread answers."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the folder that model.yaml names."""
        own = yaml.safe_load(Path(__file__).with_name("model.yaml").read_text(encoding="utf-8"))
        self.model = AutoModelForCausalLM.from_pretrained(own["model"], dtype=torch.bfloat16).to("cuda").eval()
        self.waiting: queue.Queue[Any] = queue.Queue()
        self._generate([(b"warm", 8)])
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()
        pb_utils.Logger.log_info(f"transformers: {sum(one.numel() for one in self.model.parameters())} parameters")

    def execute(self, requests: list[Any]) -> None:
        """Queue requests; each is answered through its sender."""
        for request in requests:
            prompt = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy().flat[0]
            most = pb_utils.get_input_tensor_by_name(request, "sampling_param_max_tokens")
            count = 16 if most is None else int(most.as_numpy().flat[0])
            self.waiting.put((prompt, count, request.get_response_sender()))

    def finalize(self) -> None:
        """Answer what waits, and end."""
        self.waiting.put(None)
        self.thread.join()

    def _serve(self) -> None:
        while True:
            taken = [self.waiting.get()]
            # Requests that are sent at once arrive one by one.
            time.sleep(GATHER_S)
            while len(taken) < MOST and not self.waiting.empty():
                taken.append(self.waiting.get())
            own = [item for item in taken if item is not None]
            if own:
                texts = self._generate([(prompt, count) for prompt, count, _ in own])
                self._answer([(sender, text) for (_, _, sender), text in zip(own, texts, strict=True)])
            if len(own) < len(taken):
                return

    def _generate(self, asked: list[tuple[bytes, int]]) -> list[bytes]:
        """Return the bytes that follow each prompt, as many as asked for."""
        longest = max(len(prompt) for prompt, _ in asked) + 1
        tokens = torch.zeros(len(asked), longest, dtype=torch.long)
        mask = torch.zeros_like(tokens)
        for row, (prompt, _) in enumerate(asked):
            own = [BEGIN, *prompt]
            tokens[row, -len(own) :] = torch.tensor(own)
            mask[row, -len(own) :] = 1
        most = max(count for _, count in asked)
        with torch.inference_mode():
            found = self.model.generate(
                tokens.to("cuda"), attention_mask=mask.to("cuda"), max_new_tokens=most, min_new_tokens=most,
                do_sample=False, pad_token_id=0, eos_token_id=None,
            )  # fmt: skip
        new = (found[:, longest:] % BEGIN).to(torch.uint8).cpu().numpy()
        return [row[:count].tobytes() for row, (_, count) in zip(new, asked, strict=True)]

    @staticmethod
    def _answer(found: list[Any]) -> None:
        for sender, text in found:
            # Not every sequence of bytes is a text.
            tensor = pb_utils.Tensor("text_output", np.array([text.decode("latin-1").encode()], dtype=object))
            sender.send(pb_utils.InferenceResponse([tensor]), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
