"""How often kinds of tokens are emitted in long turns, against the target's own chance at every place.

Every emitted token is a coin for each kind: does it belong to the kind, and with which chance under the target, given
all tokens before it. One turn gives as many coins as it has tokens, so that a bias of some hundredths is seen in a few
turns; chi-squared over whole sequences needs thousands of runs for that. Only the kinds that are asked for are seen.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from specproof.engine import Case, Engine, Floats
from specproof.evidence import Evidence
from specproof.law_cases import random_prompt
from specproof.oracle import oracle_of
from specproof.statistics import coin_test

TURN_TOKENS = 48

PREFERRED = "tokens that the drafter prefers (q > p)"
"""The kind that lossy rules favour: no other set of tokens differs more between p and q."""


ADVICE = (
    "Look at what is drawn after a rejection (the residual, not p), at the bonus (p, not q), and whether q is what the "
    "drafter draws from."
)


def token_evidence(engine: Engine, case: Case, turn_seeds: Sequence[int]) -> Iterator[Evidence]:
    """One test per kind of token: those the drafter prefers (if it is a model), and each token of the vocabulary.

    Args:
        engine: the decoder under audit.
        case: run with another prompt and seed each turn, for `TURN_TOKENS` tokens.
        turn_seeds: one per turn.

    Raises:
        Exception: whatever the engine raises.
    """
    outcomes: dict[str, list[bool]] = defaultdict(list)
    chances: dict[str, list[float]] = defaultdict(list)
    for seed in turn_seeds:
        for token, p, q in _turn(engine, case, seed):
            for kind, members in _kinds(p, q).items():  # members: bool [V]
                outcomes[kind].append(bool(members[token]))
                chances[kind].append(float(p[members].sum()))
    for kind in outcomes:
        test = coin_test(outcomes[kind], chances[kind])
        finding = (
            f"{kind} make up {test.observed:.4f} of {test.trials} tokens in {len(turn_seeds)} turns, "
            f"expected {test.expected:.4f} (mean of the target's chance at every place): z = {test.z:.2f}, "
            f"p = {test.p_value:.2g}"
        )
        yield Evidence(case, kind, test, finding, ADVICE)


def _turn(engine: Engine, case: Case, seed: int) -> Iterator[tuple[int, Floats, Floats]]:
    """Every token of one long turn, with the p and q [V] of its place; q is p where the drafter is no model."""
    target, draft = oracle_of(case.target), oracle_of(case.draft or case.target)
    prompt = random_prompt(target.vocab_size, seed)
    turn = replace(case, prompt=prompt, seed=seed, max_tokens=TURN_TOKENS)
    emitted = [int(token) for token in engine.start(turn)]
    before = [*prompt, *emitted[:-1]]
    p, q = (oracle.distributions(before, len(prompt), case.sampling) for oracle in (target, draft))
    return zip(emitted, p, q, strict=False)


def _kinds(p: Floats, q: Floats) -> dict[str, NDArray[np.bool_]]:
    """Which tokens belong to each kind, given p and q [V]: bool [V]. Kinds that are empty everywhere test nothing."""
    tokens = np.arange(len(p))
    return {PREFERRED: q > p} | {f"token {token}": tokens == token for token in tokens}
