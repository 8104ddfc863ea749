"""Writes a byte-pair tokenizer for the gate bench: `-m tests.bench.small_tokenizer FILE`.

4,000 tokens learned from the bench's own text: about as many bytes a token as English has.
"""

from __future__ import annotations

import random
import sys

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from tests.bench.gate_overhead import Bodies


def main() -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=4000, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(Bodies(random.Random(1)).text.splitlines(), trainer)
    tokenizer.save(sys.argv[1])


if __name__ == "__main__":
    main()
