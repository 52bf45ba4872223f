"""A batch of rows of unequal length: every row is as if it were alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from parts_models import TOLERANCE, Block, blocks, check_rows, model

from reference.decoder import Decoder
from reference.drafters import DraftModel
from reference.errors import CacheLengthError, TokenOutOfRange
from reference.parts.batch import BatchTransformer
from reference.parts.batch_decoder import BatchDecoder, BatchRow
from reference.randomness import SeededRandomness
from reference.transformer import Transformer, load
from reference.values import SamplingParams
from specproof.pairs import toy

PROMPTS = ((3, 1, 4, 1, 5), (9,), (2, 6, 5))


def batched() -> BatchTransformer:
    found = model("batch")
    assert isinstance(found, BatchTransformer)
    return found


@given(rounds=st.lists(st.tuples(blocks(), blocks(), blocks()), min_size=1, max_size=4))
def test_rows_that_keep_different_numbers_of_tokens_are_each_as_if_alone(rounds: list[tuple[Block, ...]]) -> None:
    subject = batched()
    caches, histories = subject.new_batch(3, 40), [(), (), ()]
    for blocks_ in rounds:
        verified = subject.forward_rows([block.tokens for block in blocks_], caches)
        for row, (block, activations) in enumerate(zip(blocks_, verified, strict=True)):
            alone = subject.forward_without_cache((*histories[row], *block.tokens)).logits
            np.testing.assert_allclose(activations.logits, alone[len(histories[row]) :], atol=TOLERANCE)
            caches[row].trim(block.rejected)
            histories[row] = (*histories[row], *block.tokens[: len(block.tokens) - block.rejected])
    for cache, history in zip(caches, histories, strict=True):
        check_rows(subject, cache, history)


def decoded_in_a_batch(temperature: float) -> list[list[int]]:
    """Every row of a batch, decoded together to its end; the last one leads."""
    target, draft, sampling = batched(), load(toy().draft), SamplingParams(temperature=temperature)
    caches = target.new_batch(len(PROMPTS), 40)
    rows: list[BatchRow] = []
    for number, (prompt, cache) in enumerate(zip(PROMPTS, caches, strict=True)):
        randomness = SeededRandomness(number)
        decoder = BatchDecoder(
            target, rule="rejection", sampling=sampling, randomness=randomness, num_draft_tokens=3,
            batch_model=target, companions=rows.copy(),
        )  # fmt: skip
        budget = (5, 7, 12)[number]
        rows.append(
            BatchRow(decoder, decoder.prefill(prompt, DraftModel(draft, sampling, randomness), budget, cache), cache)
        )
    for row in reversed(rows):  # the last one leads; those that it leaves unfinished go on without it
        list(row.decoder.generate(row.state))
    assert all(row.state.finish == "length" for row in rows)
    return [row.state.emitted for row in rows]


def decoded_alone(temperature: float) -> list[list[int]]:
    target, draft, sampling = load(toy().target), load(toy().draft), SamplingParams(temperature=temperature)
    found = []
    for number, prompt in enumerate(PROMPTS):
        randomness = SeededRandomness(number)
        decoder = Decoder(target, rule="rejection", sampling=sampling, randomness=randomness, num_draft_tokens=3)
        state = decoder.prefill(prompt, DraftModel(draft, sampling, randomness), (5, 7, 12)[number])
        list(decoder.generate(state))
        found.append(state.emitted)
    return found


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_batch_emits_what_its_rows_emit_alone(temperature: float) -> None:
    assert decoded_in_a_batch(temperature) == decoded_alone(temperature)


def test_a_batch_says_when_its_capacity_is_spent() -> None:
    subject = batched()
    with pytest.raises(CacheLengthError, match="slot 4 is behind the capacity of 4"):
        subject.forward_rows([(1, 2, 3, 4, 5)], subject.new_batch(1, 4))


def test_a_token_that_is_refused_leaves_every_row_as_it_was() -> None:
    subject = batched()
    caches = subject.new_batch(2, 8)
    with pytest.raises(TokenOutOfRange, match="token 99"):
        subject.forward_rows([(1,), (99,)], caches)
    assert [cache.offset for cache in caches] == [0, 0]


def test_a_row_is_not_copied_without_its_batch() -> None:
    with pytest.raises(CacheLengthError, match="copy the whole batch"):
        batched().new_batch(1, 4)[0].copy()


def test_one_sequence_alone_needs_no_batch() -> None:
    subject: Transformer = batched()
    cache = subject.new_cache()
    np.testing.assert_allclose(
        subject.forward((1, 2, 3), cache).logits, subject.forward_without_cache((1, 2, 3)).logits, atol=TOLERANCE
    )
    check_rows(subject, cache, (1, 2, 3))
