"""The decode loop: propose, verify, commit, on an explicit state that can be copied.

One contract for every round boundary and every kind of end (a stop token, the budget, an early close, an exception
out of a model, a sampler or the device): the history holds what was emitted, and the caches of target and drafter
hold exactly the rows of `history[:-1]`. The last token is pending: emitted, but not forwarded yet.

One wait per round: everything up to the choice of the final token is lazy, and `readout` brings all that the host
wants to know at once. (A drafter with `min_prob` > 0 waits once more for each proposal.)

After an exception, decoding on from the state gives at temperature 0 what an uninterrupted run gives. Above 0 it
gives another sample of the same law: choices that were made and not delivered are made anew, with fresh keys.
(Under `coupled` keys are positions, so there, too, it gives what an uninterrupted run gives.)
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import mlx.core as mx

from mlx_impl.acceptance import rule_for
from mlx_impl.draft_length import DraftLength, draft_length
from mlx_impl.drafters import NAME as DRAFT_NAME
from mlx_impl.drafters import DeviceBlock, Drafter
from mlx_impl.forward import check_tokens, device_tokens, plain_count, plain_tokens, vocab_size
from mlx_impl.model_cache import ModelCache, cache_of
from mlx_impl.randomness import Randomness
from mlx_impl.readout import RoundReadout, read, read_verdict
from mlx_impl.sampling import LogitsProcessor, Sampler, check_rows, distributions, needs_context, row_faults
from mlx_impl.state import UNLIMITED, DecoderState
from mlx_impl.statistics import print_if_asked
from reference.errors import CacheLengthError, DecodingFault, EmptyPrompt, InvalidSetting
from reference.values import Finish, GeneratedToken, Round, SamplingParams, log_probability

__all__ = ["Decoder", "DecoderState"]

NAME = "target"


class Decoder:
    """A speculative decoder.

    Args:
        target: `mlx_impl.transformer.Transformer`, or any mlx-lm model.
        sampling: the distribution to be kept: parameters, or an opaque sampler in mlx-lm's convention. The latter keeps
            its own law, but nobody knows the probabilities: rounds report none.
        rule: a name in `RULES`. `greedy` asks for temperature 0, an opaque sampler for `sampler_match`. None chooses:
            `sampler_match` for an opaque sampler, `greedy` at temperature 0, else `rejection`.
        randomness: makes the rule's choices and the first draw; may be shared with the drafter.
        num_draft_tokens: k, most proposals in a round; 0 decodes plainly. A `DraftLength` chooses it for each round.
        stop_tokens: emitting one of them ends the turn; it is emitted itself.
        processors: of the target's logits, in mlx-lm's convention; applied before `sampling`.

    Raises:
        InvalidSetting: an unknown rule, one that does not go with the sampling, k no integer >= 0, or a model that
            hides its vocabulary size.
    """

    def __init__(
        self,
        target: Any,
        *,
        sampling: SamplingParams | Sampler,
        rule: str | None = None,
        randomness: Randomness,
        num_draft_tokens: int | DraftLength,
        stop_tokens: AbstractSet[int] = frozenset(),
        processors: Sequence[LogitsProcessor] = (),
    ) -> None:
        self.target = target
        self.rule = rule_for(sampling, rule)
        self.sampling = sampling
        self.randomness = randomness
        self.draft_length = draft_length(num_draft_tokens)
        self.num_draft_tokens = self.draft_length.max_k
        self.stop_tokens = frozenset(stop_tokens)
        self.processors = tuple(processors)
        self.vocab_size = vocab_size(target)

    def step(self, state: DecoderState) -> Round:
        """One round: propose, verify, commit. Changes `state` in place.

        Raises:
            InvalidSetting: the turn has ended, or `extend` has used the state up.
            CacheLengthError: the target's cache does not hold the history's rows; something else has used it.
            DecodingFault: a model or a drafter broke its contract (`NonFiniteLogits`, `HiddenCache`, `DishonestDraft`).
            After any exception, of whatever kind, `state` is at the boundary that it was at.
        """
        state.refuse_if_superseded()
        if state.finish is not None:
            raise InvalidSetting(f"this turn has ended (finish is {state.finish!r}); begin the next one by extend()")
        state.settle()
        state.check_rows()
        try:
            state.unsettled = True
            self._begin(state)
            limit = self._limit(state)
            chosen = self.draft_length.choose(limit)
            block = self._propose(state, min(chosen, limit))
            verdict = self._verify(state, block)
            done = self._commit(state, block, verdict, is_pause=chosen == 0 < self.num_draft_tokens)
            self.draft_length.record(verdict.num_accepted)
            return done
        except BaseException:
            state.roll_back()
            raise

    def _begin(self, state: DecoderState) -> None:
        """From here the target's cache can go back to the boundary; it is at it, or is brought to it."""
        cache = state.target_cache
        if cache.behind:
            cache.feed(self.target, state.history[cache.length : -1])
        cache.checkpoint(state.history[:-1])

    def _limit(self, state: DecoderState) -> int:
        """The most proposals that have a place; one of the budget is left for the target's own token."""
        room = self.num_draft_tokens if state.remaining is None else state.remaining - 1
        return min((room, *_rows_until_quantised(state)))

    def _propose(self, state: DecoderState, budget: int) -> DeviceBlock:
        """At most so many proposals."""
        block = state.drafter.propose(state.history, None, budget)
        self.draft_length.proposed(len(block))
        if len(block) > budget:
            raise DecodingFault(f"the drafter proposed {len(block)} tokens on a budget of {budget}; mend the drafter")
        shape = (len(block), self.vocab_size)
        if block.tokens.ndim != 1 or block.probabilities.shape != shape:
            raise DecodingFault(
                f"the drafter gave tokens {block.tokens.shape} with probabilities {block.probabilities.shape}; it must "
                f"give k tokens and a distribution over the target's vocabulary for each, here {shape}"
            )
        return block

    def _verify(self, state: DecoderState, block: DeviceBlock) -> RoundReadout:
        """One forward of the target over pending token and proposals; the rule's decision; the round's one wait."""
        q, drafted = block.probabilities, block.tokens  # [k, V], [k]
        inputs = mx.concatenate([device_tokens(state.history[-1:]), drafted])  # [k + 1]
        logits = state.target_cache.forward(self.target, inputs)  # [k + 1, V]
        p = distributions(logits, self.sampling, self._context(state, block), self.processors)  # [k + 1, V]
        num_accepted, token = self.rule.decide(p, q, drafted, self.randomness, len(state.history))
        verdict = read_verdict(p, block, num_accepted, token, row_faults(logits, p))
        verdict.check(self.vocab_size, NAME, len(state.history) - 1)
        return verdict

    def _commit(self, state: DecoderState, block: DeviceBlock, verdict: RoundReadout, is_pause: bool) -> Round:
        """Emit what was decided, up to a stop token, and bring both caches to the new boundary.

        In a pause a draft model's stays behind, or it would not be one: the next `propose` catches up in one forward.
        """
        a = verdict.num_accepted
        decided = [*verdict.drafted[:a], verdict.token]
        stop = next((index for index, token in enumerate(decided) if token in self.stop_tokens), a)
        emitted = decided[: stop + 1]
        history = [*state.history, *emitted]
        state.target_cache.commit(self.target, history[:-1])  # of k + 1 new rows len(emitted) stay
        if not is_pause or state.drafter.cache is None:
            state.drafter.commit(history)
        finish = self._finish(emitted[-1], len(history) - state.prompt_length, state.max_tokens)
        if finish is not None:
            state.drafter.settle(history)
        done = Round(drafted=tuple(verdict.drafted), num_accepted=a, emitted=tuple(emitted), finish=finish)
        figures: Sequence[float | None] = [None] * len(emitted)
        if self._knows_probabilities:
            done = verdict.with_figures(done)
            figures = done.log_probabilities
        decided_upon = enumerate(zip(emitted, figures, strict=True))
        tokens = [GeneratedToken(token, i < a, state.num_rounds, figure) for i, (token, figure) in decided_upon]
        state.record(tokens, block, done)
        return done

    def prefill(
        self,
        prompt: Sequence[int],
        drafter: Drafter,
        max_tokens: int,
        target_cache: ModelCache | Sequence[Any] | None = None,
    ) -> DecoderState:
        """Forward the prompt through both models and emit the first token (none where max_tokens is 0).

        Args:
            prompt: token ids, at least one.
            drafter: used by the state from now on. Its cache, too, may hold a prefix of the prompt.
            max_tokens: most tokens to emit in this turn; -1 for no limit.
            target_cache: it holds a prefix of the prompt, not to be forwarded again; a list of the layers' caches or a
                `ModelCache`, None for a fresh one. Nothing is cut silently: not from it, nor from the drafter's.

        Raises:
            EmptyPrompt, TokenOutOfRange, InvalidSetting, VocabularyMismatch: bad arguments.
            CacheLengthError: a cache holds more than `len(prompt) - 1` rows, or tokens that it knows to be others, or
                its layers disagree.
            DecodingFault: a model broke its contract (`NonFiniteLogits`, `HiddenCache`).
            After any exception both caches hold what they held.
        """
        prompt = plain_tokens(prompt)
        max_tokens = plain_count(max_tokens, "max_tokens", ", or -1 for no limit", least=UNLIMITED)
        cache = cache_of(self.target, NAME, target_cache)
        self._check_turn(prompt, drafter, cache)
        kept, draft_kept = (0 if held is None else held.length for held in (cache, drafter.cache))
        state = DecoderState(prompt, len(prompt), max_tokens, cache, drafter, DeviceBlock.empty(self.vocab_size))
        try:
            cache.checkpoint(prompt[:kept])
            if max_tokens == 0:
                state.finish = "length"
                if prompt[kept:-1]:
                    cache.feed(self.target, prompt[kept:-1])
            else:
                first = self._first_token(state, prompt[kept:])
                state.history = [*prompt, first.token]
                state.tokens = [first]
                state.finish = self._finish(first.token, 1, max_tokens)
            cache.commit(self.target, state.history[:-1])
            drafter.settle(state.history)
        except BaseException:
            cache.rollback(kept)
            drafter.rollback(prompt[: draft_kept + 1])
            raise
        return state

    def extend(self, state: DecoderState, tokens: Sequence[int], max_tokens: int) -> DecoderState:
        """The next turn, on the caches of a turn that ended, was closed or failed. `state` is used up.

        Args:
            state: at a round boundary, as it always is; tokens of it that were not delivered count as history.
            tokens: what the next turn adds to the history before it decodes; may be empty.
            max_tokens: most tokens to emit in the next turn; -1 for no limit.

        Raises:
            As `prefill`; `state` stays usable then. InvalidSetting, too, where it was used up before. CacheLengthError
                where its drafter has served another history since: cut the drafter's cache, or give it another.
        """
        state.refuse_if_superseded()
        try:
            state.settle()
            state.unsettled = True
            following = self.prefill([*state.history, *tokens], state.drafter, max_tokens, state.target_cache)
            state.superseded = True
            return following
        except BaseException:  # whatever came, and whenever: either the new state has the caches, or the old one
            state.superseded = False
            state.roll_back()
            raise

    def _check_turn(self, prompt: list[int], drafter: Drafter, cache: ModelCache) -> None:
        """Refuse bad arguments before anything is changed."""
        if not prompt:
            raise EmptyPrompt("the prompt has no tokens; give at least one, such as a begin-of-text token")
        check_tokens(prompt, self.vocab_size, "prompt")
        drafter.check_vocabulary(self.target)
        for name, held in ((NAME, cache), (DRAFT_NAME, drafter.cache)):
            if held is None:
                continue
            advice = "trim the cache to what it shares with the prompt, or give another"
            if (rows := held.length) > len(prompt) - 1:
                allowed = f"a prompt of {len(prompt)} tokens allows {len(prompt) - 1}: its last one must be forwarded"
                raise CacheLengthError(f"the {name}'s cache holds {rows} rows, {allowed}; {advice}")
            if (same := held.shared(prompt)) < rows:
                raise CacheLengthError(
                    f"the {name}'s cache holds {rows} rows, those from index {same} on of other tokens than the "
                    f"prompt's; {advice}"
                )

    def _first_token(self, state: DecoderState, tokens: Sequence[int]) -> GeneratedToken:
        """Forward the rest of the prompt, and draw the token after it."""
        logits = state.target_cache.feed(self.target, tokens)  # [1, V]
        p = distributions(logits, self.sampling, self._context(state, state.block), self.processors)
        # A block of no proposals: the rule makes a plain draw from p.
        none = state.block
        _, drawn = self.rule.decide(p, none.probabilities, none.tokens, self.randomness, len(state.history))
        token, mass, faults = read(drawn, p[0, drawn], row_faults(logits, p))
        check_rows(faults, NAME, len(state.history) - 1)
        figure = log_probability(mass) if self._knows_probabilities else None
        return GeneratedToken(token, from_draft=False, round_index=-1, log_probability=figure)

    def generate(self, state: DecoderState) -> Generator[GeneratedToken]:
        """Hand out the tokens not delivered yet, and decode on until the turn ends.

        A round is committed as a whole before its first token is handed out. When the iterator is closed or fails,
        tokens that were not handed out are taken back, caches included; `generate(state)` then goes on from there.
        With SPECPROOF_ACCEPT_DIAG=1 in the environment, the end prints the turn's statistics (`statistics`).

        Raises:
            InvalidSetting: `extend` has used the state up. Otherwise as `step`.
        """
        state.refuse_if_superseded()
        try:
            while True:
                while state.delivered < len(state.tokens):
                    state.refuse_if_superseded()
                    state.delivered += 1
                    yield state.tokens[state.delivered - 1]
                if state.finish is not None:
                    return
                self.step(state)
        finally:
            try:
                state.take_back_undelivered(self.target)
            finally:
                print_if_asked(state.rounds)

    @property
    def _knows_probabilities(self) -> bool:
        """Nobody knows those that an opaque sampler draws by."""
        return isinstance(self.sampling, SamplingParams)

    def _context(self, state: DecoderState, block: DeviceBlock) -> mx.array | None:
        """History and proposals on the device, where penalties or processors ask for them."""
        if not needs_context(self.sampling, self.processors):
            return None
        return mx.concatenate([device_tokens(state.history), block.tokens])

    def _finish(self, last: int, num_emitted: int, max_tokens: int) -> Finish | None:
        """Whether the last token emitted ends the turn. A stop token goes before the budget."""
        if last in self.stop_tokens:
            return "stop"
        return "length" if num_emitted == max_tokens else None  # never, where that is UNLIMITED


def _rows_until_quantised(state: DecoderState) -> tuple[int, ...]:
    """Proposals that may be verified before rows are quantised: as in plain decoding, between two tokens."""
    left = state.target_cache.tokens_before_quantising
    return () if left is None else (max(left - 1, 0),)
