"""The decode loop: prefill, then rounds of propose, verify, commit, on a state that can be copied.

It knows when what is forwarded, and keeps the one contract of this package: between rounds, and after every
kind of end, both caches hold exactly the committed tokens, that is the history without its last token.
`DecoderState` knows which rows that is, and the ways back to such a boundary; `Decoder` goes from one to the next.
What is proposed, and what is accepted, it leaves to the drafter and the acceptance rule.
"""

from collections.abc import Generator, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Self

import numpy as np

from reference.acceptance import RULES, AcceptanceRule, Verdict
from reference.cache import KVCache
from reference.drafters import Drafter
from reference.errors import CacheLengthError, DecodingFault, EmptyPrompt, InvalidSetting, TokenOutOfRange
from reference.randomness import Randomness
from reference.sampling import LogitsProcessor, next_distribution
from reference.transformer import Activations, LanguageModel, advance, check_tokens
from reference.values import (
    DraftBlock,
    Finish,
    Floats,
    GeneratedToken,
    Round,
    SamplingParams,
    checked_integer,
    log_probability,
)


@dataclass
class DecoderState:
    """Everything a decode has come to. `Decoder.step` changes it in place; `copy` it to try several futures."""

    history: list[int]  # prompt + emitted tokens; the last one is pending: no cache holds it yet
    prompt_length: int  # P
    max_tokens: int  # the most tokens this turn may emit
    target_cache: KVCache  # holds the rows of `history[:-1]`
    drafter: Drafter  # its cache, if any, holds the same tokens (`deferred`: perhaps one less between rounds)
    target_hidden: Floats | None = None  # [n, D], the target's hidden states of the last n committed tokens
    tokens: list[GeneratedToken] = field(default_factory=list)  # the emitted tokens, with where each came from
    delivered: int = 0  # how many of them `generate` has handed out
    finish: Finish | None = None  # why the turn ended; None while it goes on
    num_rounds: int = 0  # rounds done in this turn
    block: DraftBlock = field(default_factory=DraftBlock)  # the proposals of the last round
    superseded: bool = False  # whether `extend` used it up: its caches belong to the state that `extend` returned

    @property
    def emitted(self) -> list[int]:
        """The tokens of this turn. E is its length."""
        return self.history[self.prompt_length :]

    def copy(self) -> Self:
        """An independent state: own history, own caches. Models and randomness are shared."""
        cache, drafter = self.target_cache.copy(), self.drafter.copy()
        return replace(self, history=[*self.history], tokens=[*self.tokens], target_cache=cache, drafter=drafter)

    def check_usable(self) -> None:
        """Raises InvalidSetting where `extend` has used the state up."""
        if self.superseded:
            raise InvalidSetting("this state was used up by extend; go on with the state it returned")

    def check_boundary(self) -> None:
        """As `check_usable`; CacheLengthError where the target cache holds not as many rows as `history[:-1]`."""
        self.check_usable()
        if (rows := self.target_cache.offset) != (needed := len(self.history) - 1):
            held = f"the target cache holds {rows} rows, a history of {len(self.history)} tokens needs {needed}"
            raise CacheLengthError(f"{held}; something else used it: give every state its own (copy), or prefill anew")

    def record(self, round_: Round, block: DraftBlock, hidden: Floats) -> None:
        """A round stands. One call sets all, which no signal can interrupt half-way: the history names a boundary."""
        a, figures = round_.num_accepted, zip(round_.emitted, round_.log_probabilities, strict=True)
        fresh = [GeneratedToken(t, i < a, self.num_rounds, figure) for i, (t, figure) in enumerate(figures)]
        vars(self).update(
            history=[*self.history, *round_.emitted], tokens=[*self.tokens, *fresh], block=block,
            target_hidden=hidden[: len(round_.emitted)], finish=round_.finish, num_rounds=self.num_rounds + 1,
        )  # fmt: skip

    def roll_back(self) -> None:
        """Undo a round that failed, whatever it left half-written: back to the boundary that `history` names."""
        self.target_cache.trim_to(len(self.history) - 1)
        self.drafter.rollback(self.history)

    def take_back_undelivered(self) -> None:
        """End the history with the last token delivered: a boundary like any other, from which the turn may go on."""
        if self.superseded:
            return  # the caches, and the tokens that were waiting, are another state's now
        if num_cut := len(self.tokens) - self.delivered:
            kept = None if self.target_hidden is None else self.target_hidden[:-num_cut]
            history, tokens = self.history[:-num_cut], self.tokens[:-num_cut]
            vars(self).update(history=history, tokens=tokens, finish=None, target_hidden=kept)  # at once, as `record`
        try:
            self.drafter.settle(self.history)  # only `deferred` may have a row to catch up
        finally:
            self.roll_back()


@dataclass(frozen=True)
class Decoder:
    """A speculative decoder. InvalidSetting for a setting outside its range, and for `greedy` above temperature 0."""

    target: LanguageModel  # the model whose distribution is kept
    _: KW_ONLY
    rule: str | AcceptanceRule  # a name in `acceptance.RULES`, or a rule of your own
    sampling: SamplingParams  # makes p of the target's logits
    randomness: Randomness  # makes every choice that is not the drafter's
    num_draft_tokens: int  # the most proposals per round; 0 decodes plainly
    stop_tokens: frozenset[int] = frozenset()  # emitting one ends the turn; it is the last token emitted
    processors: Sequence[LogitsProcessor] = ()  # logits processors of the target

    def __post_init__(self) -> None:
        if isinstance(self.rule, str) and self.rule not in RULES:
            raise InvalidSetting(f"no acceptance rule is named {self.rule!r}; give one of {', '.join(RULES)}")
        k = checked_integer("num_draft_tokens", self.num_draft_tokens, 0, " (0 drafts nothing)")
        stops = frozenset(checked_integer("a stop token", token, 0) for token in self.stop_tokens)
        vars(self).update(num_draft_tokens=k, stop_tokens=stops)
        if self.acceptance.name == "greedy" and (t := self.sampling.temperature) != 0:
            raise InvalidSetting(f"rule 'greedy' with temperature {t} does not keep p; set temperature 0")

    @property
    def acceptance(self) -> AcceptanceRule:
        """The rule itself."""
        return RULES[self.rule] if isinstance(self.rule, str) else self.rule

    def step(self, state: DecoderState) -> Round:
        """One round: propose, verify, commit. After any exception the state is as it was before.

        At its start both caches hold P + E - 1 rows, at its end P + E' - 1: E' = E + a + 1 unless a stop cut the block.

        Raises:
            InvalidSetting: the turn has ended, or the state was used up by `extend`.
            CacheLengthError: the target cache does not hold the committed tokens: something else used it.
            DecodingFault: a model or the drafter broke its contract.
        """
        state.check_boundary()
        if state.finish is not None:
            raise InvalidSetting(f"this turn has ended ({state.finish}); begin the next one with extend")
        try:
            block = self._propose(state)
            p, verified = self._verify(state, block)
            q = [distribution.dense() for distribution in block.distributions]
            verdict = self.acceptance.decide(p, q, block.tokens, self.randomness, len(state.history))
            round_ = self._report(state, block, p, q, verdict)
            self._commit(state, round_)
            state.record(round_, block, verified.hidden)
        except BaseException:
            state.roll_back()
            raise
        return round_

    def _propose(self, state: DecoderState) -> DraftBlock:
        """Up to k proposals; one place of the budget is left for the target's own token."""
        budget = min(self.num_draft_tokens, state.max_tokens - len(state.emitted) - 1)
        try:
            block = state.drafter.propose(state.history, state.target_hidden, budget)
            tokens = check_tokens(block.tokens, self.target)
        except TokenOutOfRange as error:
            raise DecodingFault(f"the drafter left the vocabulary: {error}") from error
        if len(block) > budget:
            raise DecodingFault(f"the drafter proposed {len(block)} tokens with a budget of {budget}; propose fewer")
        size, sizes = self.target.vocab_size, [q.vocab_size for q in block.distributions]
        if sizes != [size] * len(block):
            gave = f"{len(block)} tokens and distributions over {sizes} tokens"
            raise DecodingFault(f"the drafter gave {gave}; give one over the target's {size} for each")
        return DraftBlock(tuple(tokens), block.distributions)

    def _verify(self, state: DecoderState, block: DraftBlock) -> tuple[list[Floats], Activations]:
        """One pass over the pending token and all proposals: k + 1 new rows, p_0 .. p_k."""
        activations = advance(self.target, [state.history[-1], *block.tokens], state.target_cache)  # [k + 1, V]
        p = [self._distribution(activations, i, [*state.history, *block.tokens[:i]]) for i in range(len(block) + 1)]
        return p, activations

    def _report(self, state: DecoderState, block: DraftBlock, p: list[Floats], q: list[Floats],
                verdict: Verdict) -> Round:  # fmt: skip
        """What the round decided: the accepted proposals and the verdict's token, cut behind the first stop token."""
        a, drafted = verdict.num_accepted, block.tokens
        emitted = self._until_stop([*drafted[:a], verdict.token])
        tested = list(zip(p, q, strict=False))[: a + 1]  # p has one more
        return Round(
            drafted, a, tuple(emitted),
            p=tuple(float(p[i][token]) for i, token in enumerate(drafted)),
            q=tuple(float(q[i][token]) for i, token in enumerate(drafted)),
            sum_min=tuple(float(np.minimum(p_i, q_i).sum()) for p_i, q_i in tested),
            sum_prod=tuple(float((p_i * q_i).sum()) for p_i, q_i in tested),
            log_probabilities=tuple(log_probability(float(p[i][t])) for i, t in enumerate(emitted)),
            finish=self._finish(emitted[-1], len(state.emitted) + len(emitted), state.max_tokens),
        )  # fmt: skip

    def _commit(self, state: DecoderState, round_: Round) -> None:
        """Leave in the caches what is committed now. The history itself is still the old one."""
        # The target holds k + 1 new rows and keeps those of the pending token and of all emitted ones but the last.
        state.target_cache.trim(len(round_.drafted) + 1 - len(round_.emitted))
        # The drafter holds k new rows (`eager`: k + 1), so it may have to forward the last proposal.
        catch_up = state.drafter.commit if round_.finish is None else state.drafter.settle
        catch_up([*state.history, *round_.emitted])

    def prefill(self, prompt: Sequence[int], drafter: Drafter, max_tokens: int,
                target_cache: KVCache | None = None) -> DecoderState:  # fmt: skip
        """Forward the prompt through both models and draw the first token: E = 1, both caches hold P rows.

        Given caches (`target_cache`, the drafter's) must hold rows of a prefix of the prompt; only the rest is
        forwarded. After an exception they hold what they held before. With max_tokens = 0 nothing is drawn: E = 0,
        P - 1 rows.

        Raises:
            EmptyPrompt, TokenOutOfRange, InvalidSetting, VocabularyMismatch: an argument is refused.
            CacheLengthError: a given cache holds more than P - 1 rows.
            DecodingFault: a model or the drafter broke its contract.
        """
        prompt, max_tokens = check_tokens(prompt, self.target), checked_integer("max_tokens", max_tokens, 0)
        cache = self.target.new_cache() if target_cache is None else target_cache
        held, draft_held = cache.offset, 0 if drafter.cache is None else drafter.cache.offset
        self._check_turn(prompt, drafter, held, draft_held)
        try:
            if max_tokens == 0:
                if held < len(prompt) - 1:
                    advance(self.target, prompt[held:-1], cache)
                drafter.settle(prompt)
                return DecoderState(prompt, len(prompt), 0, cache, drafter, finish="length")
            activations = advance(self.target, prompt[held:], cache)  # logits [P - held, V]
            p = self._distribution(activations, -1, prompt)
            # A round without proposals: the rule makes a plain draw from p.
            token = self.acceptance.decide([p], [], [], self.randomness, len(prompt)).token
            history, tokens = [*prompt, token], [GeneratedToken(token, False, -1, log_probability(float(p[token])))]
            drafter.settle(history)
            hidden, finish = activations.hidden, self._finish(token, 1, max_tokens)
            return DecoderState(history, len(prompt), max_tokens, cache, drafter, hidden, tokens, finish=finish)
        except BaseException:
            cache.trim_to(held)
            drafter.rollback(prompt[: draft_held + 1])
            raise

    def extend(self, state: DecoderState, tokens: Sequence[int], max_tokens: int) -> DecoderState:
        """Begin the next turn: `tokens` (perhaps none) follow the history. `state` is used up: its caches go on.

        Raises:
            As `prefill`, and `state` stays usable then; and as `step` where it was used up, or its cache is another's.
        """
        state.check_boundary()
        try:
            state.superseded = True
            return self.prefill([*state.history, *tokens], state.drafter, max_tokens, state.target_cache)
        except BaseException:  # whatever came, and whenever: either the new state has the caches, or the old one
            state.superseded = False
            state.roll_back()
            raise

    def _check_turn(self, prompt: Sequence[int], drafter: Drafter, held: int, draft_held: int) -> None:
        """Refuse a prompt without tokens, another vocabulary, and caches too long for the prompt."""
        if not prompt:
            raise EmptyPrompt("the prompt is empty; there is no position to predict from: give at least one token")
        drafter.check_vocabulary(self.target)
        for owner, rows in (("target", held), ("draft", draft_held)):
            if rows > len(prompt) - 1:
                long = f"{owner} cache holds {rows} rows, a prompt of {len(prompt)} tokens allows {len(prompt) - 1}"
                raise CacheLengthError(f"{long} (its last is forwarded): trim the cache to shared rows, or pass none")

    def generate(self, state: DecoderState) -> Generator[GeneratedToken, None, None]:
        """Hand out tokens until the turn ends, those that are waiting first.

        A round is committed before its first token is handed out. Closing the iterator takes back what was not: the
        history ends with the last token delivered, and `generate` on the same state goes on from there.

        Raises: as `step`.
        """
        state.check_usable()
        while state.delivered < len(state.tokens) or state.finish is None:
            if state.delivered == len(state.tokens):
                self.step(state)
            state.check_usable()
            state.delivered += 1
            try:
                yield state.tokens[state.delivered - 1]
            except BaseException:  # closed by the caller
                state.take_back_undelivered()
                raise

    def _distribution(self, activations: Activations, row: int, context: Sequence[int]) -> Floats:
        return next_distribution(activations.logits[row], context, self.sampling, self.processors, self.target.name)

    def _until_stop(self, tokens: Sequence[int]) -> Sequence[int]:
        """Cut behind the first stop token."""
        end = next((i for i, token in enumerate(tokens, 1) if token in self.stop_tokens), len(tokens))
        return tokens[:end]

    def _finish(self, last: int, num_emitted: int, max_tokens: int) -> Finish | None:
        if last in self.stop_tokens:
            return "stop"
        return "length" if num_emitted == max_tokens else None
