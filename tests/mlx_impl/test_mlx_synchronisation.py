"""The host waits for the device once per round."""

import pytest

mx = pytest.importorskip("mlx.core", reason="mlx is not installed; pip install 'specproof[mlx]'")

from mlx_decodes import lookup, make  # noqa: E402
from mlx_toys import GREEDY, SAMPLED, Scripted, toy  # noqa: E402

from mlx_impl import DraftModel, KeyedRandomness  # noqa: E402
from reference.values import SamplingParams  # noqa: E402

READS = ("item", "tolist", "__bool__", "__int__", "__float__", "__index__", "__array__", "__iter__", "__dlpack__")
EVERYTHING = SamplingParams(
    temperature=0.9, top_k=20, top_p=0.95, min_p=0.01, repetition_penalty=1.2, frequency_penalty=0.1, penalty_window=5,
    logit_bias={3: 1.0},
)  # fmt: skip


@pytest.fixture
def waits(monkeypatch):
    """Every place where the host waited: calls of `mx.eval`, and reads of arrays that were not evaluated by one."""
    noted, evaluated, evaluate = [], {}, mx.eval

    def noted_eval(*arrays):
        noted.append("eval")
        evaluated.update({id(array): array for array in arrays})
        return evaluate(*arrays)

    def noted_read(name, read):
        def reading(array, *args, **settings):
            if id(array) not in evaluated:
                noted.append(name)
            return read(array, *args, **settings)

        return reading

    monkeypatch.setattr(mx, "eval", noted_eval)
    monkeypatch.setattr(mx, "synchronize", lambda *_: noted.append("synchronize"))
    for name in READS:
        monkeypatch.setattr(mx.array, name, noted_read(name, getattr(mx.array, name)))
    return noted


def started(rule, sampling, draft, seed=0):
    decoder, drafter = make(rule, 4, draft=draft, sampling=sampling, seed=seed)
    return decoder, decoder.prefill([1, 2, 3], lookup() if draft is None else drafter, 30)


@pytest.mark.parametrize("agreeing", [True, False])
@pytest.mark.parametrize(
    ("rule", "sampling"),
    [
        ("greedy", GREEDY),
        ("sampler_match", SAMPLED),
        ("rejection", SAMPLED),
        ("rejection", EVERYTHING),
        ("block", SAMPLED),
        ("coupled", SAMPLED),
    ],
)
def test_a_round_waits_once_whatever_the_rule_the_sampling_and_the_outcome(waits, rule, sampling, agreeing):
    decoder, state = started(rule, sampling, Scripted(toy("target"), [agreeing]))
    for _ in range(3):
        waits.clear()
        decoder.step(state)
        assert waits == ["eval"]


def test_a_round_of_prompt_lookup_waits_once(waits):
    decoder, _ = make("greedy", 4)
    state = decoder.prefill([1, 2, 1, 2], lookup(), 30)
    waits.clear()
    decoder.step(state)
    assert waits == ["eval"]


def test_a_round_with_a_lazy_opaque_sampler_waits_once(waits):
    decoder, drafter = make("sampler_match", 4, sampling=lambda log_p: mx.argmax(log_p, axis=-1))
    state = decoder.prefill([1, 2, 3], drafter, 30)
    waits.clear()
    decoder.step(state)
    assert waits == ["eval"]


def test_prefill_waits_once(waits):
    started("rejection", SAMPLED, toy("draft"))
    assert waits == ["eval"]


def test_handing_tokens_out_does_not_wait(waits):
    decoder, state = started("rejection", SAMPLED, toy("draft"))
    waits.clear()
    list(decoder.generate(state))
    assert waits == ["eval"] * state.num_rounds


def test_a_floor_on_probabilities_waits_once_more_for_each_proposal(waits):
    """Documented: the drafter must look at each distribution before it draws."""
    decoder, _ = make("rejection", 4)
    drafter = DraftModel(toy("draft"), SAMPLED, KeyedRandomness(0), min_prob=1e-9)
    state = decoder.prefill([1, 2, 3], drafter, 30)
    waits.clear()
    decoder.step(state)
    assert waits == ["__float__"] * 4 + ["eval"]


@pytest.mark.parametrize("read", ["item", "tolist", "__bool__", "__float__", "__int__", "__array__", "__iter__"])
def test_a_model_that_waits_in_its_forward_is_seen(waits, read):
    """The control: one look at an array on the way shows among the waits."""

    class Waiting(Scripted):
        def change(self, logits, positions):
            for one in (logits[0, 0, 0], logits[0, 0]):
                if (one.ndim == 0) == (read in ("item", "__bool__", "__float__", "__int__")):
                    getattr(one, read)()
            return super().change(logits, positions)

    decoder, state = started("greedy", GREEDY, Waiting(toy("target"), [False]))
    waits.clear()
    decoder.step(state)
    assert waits.count(read) == 4
    assert waits.count("eval") == 1
