"""Every family of mlx-lm's caches: windows, states, shared and composite layers, as target and as drafter."""

import pytest

mx = pytest.importorskip("mlx.core", reason="mlx is not installed; pip install 'specproof[mlx]'")
pytest.importorskip("mlx_lm", reason="mlx-lm is not installed; pip install 'specproof[mlx-lm]'")

from dataclasses import replace  # noqa: E402
from functools import cache  # noqa: E402
from itertools import islice  # noqa: E402

import numpy as np  # noqa: E402
from mlx_lm.models import cache as mlx_lm_cache  # noqa: E402
from mlx_toys import GREEDY, SAMPLED, Counting  # noqa: E402

from mlx_impl import Decoder, DraftModel, KeyedRandomness  # noqa: E402
from mlx_impl.cache import make_cache  # noqa: E402
from mlx_impl.layers import kind_of, leaves, trim  # noqa: E402
from mlx_impl.model_cache import ModelCache  # noqa: E402
from mlx_impl.prompt_cache import load_caches, save_caches  # noqa: E402
from mlx_impl.rotating import RotatingKVCache, with_right_masks  # noqa: E402
from reference.errors import CacheLengthError, CheckpointError, InvalidSetting  # noqa: E402
from reference.values import SamplingParams  # noqa: E402
from specproof.adapters.mlx_families import FamilyEngine, engine_of, fresh_layers, shown  # noqa: E402
from specproof.adapters.mlx_family_models import FAMILIES, build  # noqa: E402
from specproof.engine import Case  # noqa: E402
from specproof.invariants import RUN_INVARIANTS  # noqa: E402
from specproof.pairs import toy  # noqa: E402
from specproof.regimes import REGIMES  # noqa: E402
from specproof.registry import FAMILIES as REGISTERED  # noqa: E402
from specproof.runner import run_case  # noqa: E402

STATES = ("mamba2", "lfm2", "qwen3_next", "falcon_h1")
WINDOWS = ("gemma3_text", "gemma4_text", "llama4", "llama_rotating")
PROMPT = [3, 1, 4, 1, 5]
LONG = (3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8)
"""With what is decoded behind it, longer than every window here."""


def model(name, seed=5):
    return _built(name, seed)


@cache
def _built(name, seed):
    return build(name, 32, seed)


def decoder_of(target, k, **settings):
    return Decoder(
        target, rule="greedy", sampling=GREEDY, randomness=KeyedRandomness(0), num_draft_tokens=k, **settings
    )


def drafter_of(draft, name=None):
    layers = None if name is None else fresh_layers(draft, name)
    return DraftModel(draft, GREEDY, KeyedRandomness(1), cache=layers)


# ------------------------------------------------------------------------------------------------------- the audit


def some_cases(engine, regime, count=1):
    """A few cases of a regime with a draft model, the same every time, from near the beginning: they take a while to be
    made. Longer ones where the regime allows it, so that windows wrap."""
    pair = toy().built_as(engine.capabilities.architecture)
    cases = (case for case in REGIMES[regime].cases(pair, engine.capabilities, 0, quick=True) if case.draft is not None)
    chosen = list(islice(cases, 2, 2 + 3 * count, 3))
    return [replace(case, prompt=LONG, max_tokens=20) for case in chosen] if regime == "mixed" else chosen


def violations(engine, cases):
    found = set()
    for case in cases:
        run = run_case(engine, case)
        for name, invariant in RUN_INVARIANTS.items():
            if invariant.observable(engine.capabilities) and invariant.applies(run) and invariant.check(run):
                found.add(name)
    return found


@pytest.mark.parametrize("regime", ["mixed", "stop", "close", "abort"])
@pytest.mark.parametrize("name", FAMILIES)
def test_all_invariants_hold_on_every_family_of_caches(name, regime):
    engine = engine_of(name)
    assert violations(engine, some_cases(engine, regime, 2 if regime == "mixed" else 1)) == set()


@pytest.mark.parametrize("name", ["gemma3_text", "llama4", *STATES])
def test_rejected_tokens_left_in_windows_and_states_are_seen(name, monkeypatch):
    """The control: only what can be trimmed is rolled back, which is what `trim` alone can do."""
    monkeypatch.setattr("mlx_impl.model_cache.put_back", lambda *_: None)
    engine = engine_of(name)
    assert violations(engine, some_cases(engine, "mixed", 2))


@pytest.mark.parametrize("name", ["llama", "llama_quantised"])
def test_a_rejected_row_that_is_left_in_the_place_of_an_accepted_one_is_seen(name, monkeypatch):
    """The control for layers that are trimmed: of the right length, and its last row is one that was rejected."""
    monkeypatch.setattr("mlx_impl.model_cache.trim", _trimmed_before_the_last)
    engine = engine_of(name)
    assert "cache_content" in violations(engine, some_cases(engine, "mixed", 2))


def _trimmed_before_the_last(leaf, length, index):
    if leaf.offset > length > 0:
        arrays = [part for pair in (leaf.keys, leaf.values) for part in (pair if isinstance(pair, tuple) else (pair,))]
        for array in arrays:
            array[..., length - 1, :] = array[..., length, :]
    trim(leaf, length, index)


class Exact(FamilyEngine):
    """The engine of a family, on the caches that its model makes by itself."""

    def _cache(self, name, folder, layers):
        return ModelCache(name, make_cache(self._load(folder)) if layers is None else list(layers))


def test_rows_that_are_not_quantised_are_not_what_the_oracle_has_for_quantised_ones():
    """The control of the oracle: it has the rows of the cache that is audited, not those of the model."""
    engine = Exact(family="llama_quantised")
    assert "cache_content" in violations(engine, some_cases(engine, "mixed"))


def test_quantised_rows_of_a_block_are_those_of_single_steps_but_where_rounding_decides_between_two_codes():
    """Never with MLX's own BLAS on a CPU, and with any other in very few rows."""
    quantised, rng = model("llama_quantised"), np.random.default_rng(2)
    near = total = 0
    for _ in range(20):
        steps, block = (fresh_layers(quantised, "llama_quantised") for _ in range(2))
        tokens = [int(token) for token in rng.integers(0, 32, 24)]
        for start in range(0, len(tokens), 6):
            quantised(mx.array([tokens[start : start + 6]]), cache=block)
        for token in tokens:
            quantised(mx.array([[token]]), cache=steps)
        for one, other in zip(shown(steps)[1], shown(block)[1], strict=True):
            for rows, others in ((one.keys, other.keys), (one.values, other.values)):
                near += int((np.abs(rows - others).max(axis=(0, 2)) < 1e-4).sum())
                total += rows.shape[1]
    assert near >= 0.97 * total


@pytest.mark.parametrize("name", ["llama", "llama_quantised"])
def test_a_cache_that_was_trimmed_to_nothing_shows_nothing(name):
    """As after a first forward that failed behind its rows."""
    layers = fresh_layers(model(name), name)
    model(name)(mx.array([PROMPT]), cache=layers)
    for leaf in layers:
        trim(leaf, 0, 0)
    offsets, held = shown(layers)
    assert offsets == (0, 0)
    assert [rows.keys.shape[1] for rows in held] == [0, 0]


@pytest.mark.parametrize("name", ["llama", "mamba2"])
def test_under_coupled_a_drafter_of_the_targets_weights_is_always_accepted(name):
    """It shares the target's noise: one that draws by itself would be refused now and then, and lose nothing else."""
    engine = engine_of(name)
    pair = toy().built_as(engine.capabilities.architecture)
    case = Case(id="coupled", regime="plain", target=pair.target_spec(), draft=pair.target_spec(), prompt=(3, 1, 4),
                rule="coupled", sampling=SAMPLED, num_draft_tokens=3, max_tokens=16)  # fmt: skip
    rounds = [boundary.round for boundary in run_case(engine, case).boundaries[1:]]
    assert len(rounds) == 4
    assert all(done.num_accepted == len(done.drafted) for done in rounds)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_has_windows_if_and_only_if_it_says_so(name):
    """mlx-lm's models come to make their own caches, and then do not ask how many rows to keep."""
    kinds = {kind_of(leaf) for leaf in leaves(fresh_layers(model(name), name))}
    assert ("window" in kinds) == (name in WINDOWS)


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "lfm2"])
def test_max_kv_size_bounds_full_caches_and_leaves_a_model_its_own_others(name):
    found, own = (make_cache(model(name), size) for size in (12, None))
    if name == "llama":
        assert {(type(layer), layer.max_size, layer.keep) for layer in found} == {(RotatingKVCache, 12, 4)}
    else:
        assert list(map(type, found)) == list(map(type, own))


def of_chunked(k, draft="llama"):
    """So many tokens of llama4 that its layers drop chunks."""
    decoder = Decoder(
        model("llama4"), rule="coupled", sampling=SamplingParams(temperature=1.5), randomness=KeyedRandomness(7),
        num_draft_tokens=k,
    )  # fmt: skip
    state = decoder.prefill(PROMPT, drafter_of(model(draft)), 30)
    tokens = [item.token for item in decoder.generate(state)]
    return tokens, state.statistics


def test_chunks_that_a_rejected_block_reaches_into_are_put_back():
    kinds = {type(leaf).__name__ for leaf in leaves(make_cache(model("llama4")))}
    assert kinds == {"ChunkedKVCache", "KVCache"}
    plain, _ = of_chunked(0)
    assert len(set(plain)) > 5, "a text that says nothing would show nothing"
    for k in (1, 3, 5):
        drafted, statistics = of_chunked(k)
        assert drafted == plain
        assert statistics.accepted < statistics.drafted
        assert of_chunked(k, draft="llama4")[0] == plain, "as drafter, too"


def test_chunks_that_are_not_put_back_change_the_output(monkeypatch):
    """The control."""
    plain, _ = of_chunked(0)
    monkeypatch.setattr("mlx_impl.model_cache.put_back", lambda *_: None)
    with pytest.raises((AssertionError, CacheLengthError)):
        assert of_chunked(3)[0] == plain


def test_every_family_is_an_engine_by_name():
    assert list(REGISTERED) == [f"mlx_impl-{name}" for name in FAMILIES]


# -------------------------------------------------------------------------------------------------- costs of going back


def test_a_block_accepted_in_part_costs_a_recurrent_target_one_forward_more_and_a_drafter_none():
    target, draft = Counting(model("mamba2")), Counting(model("mamba2", 6))
    decoder = decoder_of(target, 3)
    state = decoder.prefill(PROMPT, drafter_of(draft), 40)
    replayed = 0
    while state.finish is None:
        del target.lengths[:], draft.lengths[:]
        done = decoder.step(state)
        k = len(done.drafted)
        expected = [k + 1] if done.num_accepted == k else [k + 1, done.num_accepted + 1]
        replayed += done.num_accepted < k
        assert target.lengths == expected
        assert draft.lengths == [1] * (k + (done.num_accepted == k))
    assert replayed


@pytest.mark.parametrize("name", ["gemma3_text", "gemma4_text", "llama4"])
def test_a_block_accepted_in_part_costs_a_target_with_windows_nothing(name):
    target = Counting(model(name))
    decoder = decoder_of(target, 3)
    state = decoder.prefill(PROMPT, drafter_of(model("llama")), 30)
    while state.finish is None:
        del target.lengths[:]
        done = decoder.step(state)
        assert target.lengths == [len(done.drafted) + 1]


@pytest.mark.parametrize("name", [*STATES, *WINDOWS[:3]])
def test_a_closed_turn_goes_on_where_it_was_closed(name):
    target = model(name)
    expected = list(greedy_of(name, 14))
    for closed_after in (1, 2, 4, 6, 8, 11):  # in a block, before its last token, behind it, in the next one
        decoder = decoder_of(target, 4)
        state = decoder.prefill(PROMPT, drafter_of(target), 14)  # all proposals are accepted: blocks of five tokens
        iterator = decoder.generate(state)
        first = [next(iterator).token for _ in range(closed_after)]
        iterator.close()
        assert state.target_cache.length == len(PROMPT) + closed_after - 1
        assert first + [item.token for item in decoder.generate(state)] == expected


@cache
def greedy_of(name, count):
    return tuple(item.token for item in plain(name, count))


def plain(name, count):
    decoder = decoder_of(model(name), 0)
    return list(decoder.generate(decoder.prefill(PROMPT, drafter_of(model(name)), count)))


@pytest.mark.parametrize("name", ["mamba2", "gemma3_text", "falcon_h1"])
def test_a_history_cut_behind_the_last_checkpoint_is_computed_again(name):
    draft = model(name)
    drafter = drafter_of(draft)
    drafter.settle([*PROMPT, 9, 2, 6, 5, 3, 5])
    drafter.propose([*PROMPT, 9, 2, 6, 5, 3, 5], None, 2)
    shorter = [*PROMPT, 9, 2]
    fresh = drafter_of(draft)
    assert drafter.propose(shorter, None, 4).tokens.tolist() == fresh.propose(shorter, None, 4).tokens.tolist()


def test_a_recurrent_cache_that_holds_something_must_say_how_much():
    target = model("mamba2")
    layers = target.make_cache()
    target(mx.array([PROMPT[:-1]]), cache=layers)
    decoder = decoder_of(target, 2)
    with pytest.raises(InvalidSetting, match=r"recurrent layers, which do not tell how many tokens they hold"):
        decoder.prefill(PROMPT, drafter_of(target), 6, layers)
    warm = ModelCache("target", layers, length=len(PROMPT) - 1)
    state = decoder.prefill(PROMPT, drafter_of(target), 6, warm)
    assert tuple(item.token for item in decoder.generate(state)) == greedy_of("mamba2", 6)


# --------------------------------------------------------------------------------------------- windows and kept rows


@pytest.mark.parametrize("keep", [0, 4])
@pytest.mark.parametrize("held", [3, 10, 11, 12, 13, 30])
@pytest.mark.parametrize("count", [2, 5])
def test_several_tokens_at_once_see_what_single_steps_see_before_at_and_after_the_window_is_full(keep, held, count):
    assert verify_differs(RotatingKVCache, keep, held, count) < 1e-4


@pytest.mark.parametrize("keep", [0, 4])
@pytest.mark.parametrize("held", [0, 2, 5])
def test_a_first_pass_that_is_longer_than_the_window_sees_what_single_steps_see(keep, held):
    assert verify_differs(RotatingKVCache, keep, held, 20) < 1e-4


def test_mlx_lms_own_masks_let_a_verify_pass_see_other_rows_where_first_rows_are_kept():
    """The control, and why there is a class of ours."""
    assert verify_differs(mlx_lm_cache.RotatingKVCache, 4, 30, 5) > 1e-2


def verify_differs(kind, keep, held, count):
    target, tokens = model("llama"), [int(token) for token in np.random.default_rng(1).integers(0, 32, held + count)]
    steps, block = ([kind(max_size=12, keep=keep) for _ in target.layers] for _ in range(2))
    for layers in (steps, block):
        for token in tokens[:held]:
            target(mx.array([[token]]), cache=layers)
    one_by_one = [target(mx.array([[token]]), cache=steps)[0] for token in tokens[held:]]
    at_once = target(mx.array([tokens[held:]]), cache=block)[0]
    return float(mx.max(mx.abs(mx.concatenate(one_by_one) - at_once)))


def test_a_rotating_cache_of_mlx_lm_that_keeps_rows_gets_the_right_masks_in_the_callers_list():
    theirs = [mlx_lm_cache.RotatingKVCache(max_size=12, keep=4), mlx_lm_cache.KVCache()]
    layers = list(theirs)
    ModelCache("target", layers)
    assert [type(layer) for layer in layers] == [RotatingKVCache, mlx_lm_cache.KVCache]
    assert with_right_masks(layers[0]) is layers[0]


# ---------------------------------------------------------------------------------------------------- caches in files


@pytest.mark.parametrize("name", FAMILIES)
def test_saved_caches_of_both_models_go_on_as_if_nothing_had_happened(name, tmp_path):
    target, file = model(name), tmp_path / "caches.safetensors"
    decoder, draft = decoder_of(target, 3), model("llama", 6)
    layers = None if FAMILIES[name].makes_its_caches else fresh_layers(target, name)
    state = decoder.prefill(PROMPT, drafter_of(draft), 25, layers)
    iterator = decoder.generate(state)
    first = [next(iterator).token for _ in range(15)]
    iterator.close()
    save_caches(file, state.history[:-1], state.target_cache, state.drafter.cache)
    expected = [item.token for item in decoder.generate(state)]
    tokens, target_cache, draft_cache = load_caches(file)
    assert tokens == [*PROMPT, *first[:-1]]
    drafter = DraftModel(draft, GREEDY, KeyedRandomness(1), cache=draft_cache)
    following = decoder.prefill([*PROMPT, *first], drafter, 10, target_cache)
    assert [item.token for item in decoder.generate(following)] == expected


def test_files_that_hold_something_else_are_refused(tmp_path):
    file = tmp_path / "caches.safetensors"
    target = ModelCache("target", fresh_layers(model("llama"), "llama"))
    target.feed(model("llama"), PROMPT)
    with pytest.raises(CacheLengthError, match=r"the target's cache holds 5 tokens, and 4 are given; save at a round"):
        save_caches(file, PROMPT[:-1], target)
    with pytest.raises(CheckpointError, match=r"is no file of caches \(.*\); give one that save_caches wrote"):
        load_caches(file)
    mx.save_safetensors(str(file), {"a": mx.zeros(3)})
    with pytest.raises(CheckpointError, match=r"is no file of caches"):
        load_caches(file)
