"""`specproof generate`: text, figures, exit status and messages."""

import re
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

mx = pytest.importorskip("mlx.core", reason="mlx is not installed; pip install 'specproof[mlx]'")
pytest.importorskip("mlx_lm", reason="mlx-lm is not installed; pip install 'specproof[mlx-lm]'")

from mlx_lm.models.cache import QuantizedKVCache  # noqa: E402

from mlx_impl import Decoder, KeyedRandomness, PromptLookup, load  # noqa: E402
from mlx_impl.models import LoadedModel  # noqa: E402
from reference.errors import NonFiniteLogits  # noqa: E402
from reference.values import SamplingParams  # noqa: E402
from specproof.adapters.mlx_family_models import build  # noqa: E402
from specproof.cli import app  # noqa: E402
from specproof.generation.settings import CacheSettings, Settings  # noqa: E402
from specproof.generation.turn import Generation, comparison  # noqa: E402
from specproof.pairs import tiny, toy  # noqa: E402

TARGET, DRAFT = toy().target, toy().draft
GREEDY = SamplingParams(temperature=0)
PROMPT, COUNT = "t3 t1 t4", 16
FIGURES = r"(\d+) tokens, [\d.]+ tokens/s"
TESTED = r"(?P<accepted>\d+) of (?P<tested>\d+) tested, \d+ drafted, \d+ rounds"
ROUNDS = rf"; [\d.]+ tokens a round, acceptance [\d.]+ \({TESTED}\)"
GREEN, RESET = "\x1b[32m", "\x1b[0m"


def run(*arguments: object, given: str = "", model: Path | str = TARGET) -> Any:
    """The result of `specproof generate` with these arguments; a traceback is a failed test."""
    command = ["generate", "--model", str(model), *map(str, arguments)]
    result = CliRunner(env={"COLUMNS": "160"}).invoke(app, command, input=given)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def text_of(*arguments: object, prompt: str = PROMPT, count: int = COUNT, **others: Any) -> str:
    """What a good call writes, without the newline at its end."""
    result = run("--prompt", prompt, "--max-tokens", count, *arguments, **others)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.endswith("\n")
    return result.stdout[:-1]


def plain_text(prompt: str = PROMPT, sampling: SamplingParams = GREEDY) -> str:
    """Decoding without drafting and without the command."""
    loaded = load(TARGET)
    decoder = Decoder(loaded.model, sampling=sampling, randomness=KeyedRandomness(0), num_draft_tokens=0)
    state = decoder.prefill(loaded.tokenizer.encode(prompt), PromptLookup(decoder.vocab_size), COUNT)
    return loaded.tokenizer.decode([item.token for item in decoder.generate(state)])


@pytest.fixture(scope="module")
def plain() -> str:
    return plain_text()


@pytest.mark.parametrize(
    "drafting",
    [
        (),
        ("--draft", DRAFT),
        ("--lookup",),
        ("--lookup", "--draft", DRAFT, "--k", 2),
        ("--draft", DRAFT, "--k", "auto"),
        ("--draft", TARGET, "--rule", "block"),
    ],
    ids=lambda arguments: " ".join(str(part) for part in arguments if part not in (TARGET, DRAFT)) or "plain",
)
def test_at_temperature_0_the_text_is_that_of_plain_decoding_and_a_line_sums_it_up(drafting, plain) -> None:
    result = run("--prompt", PROMPT, "--max-tokens", COUNT, *drafting)
    assert (result.exit_code, result.stdout) == (0, plain + "\n")
    (line,) = result.stderr.splitlines()
    summed_up = re.fullmatch(FIGURES + (ROUNDS if drafting else ""), line)
    assert summed_up, line
    assert int(summed_up[1]) == COUNT


def test_a_drafter_that_is_the_target_has_all_its_proposals_accepted() -> None:
    line = run("--prompt", PROMPT, "--max-tokens", COUNT, "--draft", TARGET).stderr
    summed_up = re.search(ROUNDS, line)
    assert summed_up["accepted"] == summed_up["tested"] != "0"


def test_compare_gives_both_rates_and_their_ratio_and_says_that_the_text_is_the_same(plain) -> None:
    result = run("--prompt", PROMPT, "--max-tokens", COUNT, "--lookup", "--compare")
    assert result.stdout == plain + "\n"
    _, line = result.stderr.splitlines()
    assert re.fullmatch(rf"plain decoding: {FIGURES}; speed-up [\d.]+; the text is identical", line)


def test_compare_says_so_of_the_coupled_rule_at_any_temperature_and_of_samples_nothing() -> None:
    arguments = ("--prompt", PROMPT, "--max-tokens", COUNT, "--draft", DRAFT, "--temperature", 1, "--compare")
    assert "speed-up" in run(*arguments).stderr
    assert "identical" not in run(*arguments).stderr
    assert "the text is identical" in run(*arguments, "--rule", "coupled").stderr


SETTINGS = Settings(
    model=str(TARGET),
    draft=None,
    lookup=True,
    rule=None,
    k=3,
    sampling=SamplingParams(temperature=0),
    min_prob=0.0,
    caches=CacheSettings(),
    seed=0,
    max_tokens=8,
    prompt=PROMPT,
    chat=None,
    stop_strings=(),
    float32=False,
)


def finished(settings: Settings) -> Any:
    turn = Generation(settings).start()
    list(turn)
    return turn


def test_a_text_that_is_not_that_of_plain_decoding_is_told() -> None:
    """The control of `identical`."""
    line = comparison(finished(SETTINGS), finished(replace(SETTINGS, max_tokens=6)))
    assert "the text DIFFERS from token 6 on: a near-tie" in line
    line = comparison(finished(SETTINGS), finished(replace(SETTINGS, prompt="t9")))
    assert "the text DIFFERS from token 0 on" in line


def test_text_before_a_stop_string_is_all_that_is_written(plain) -> None:
    stop = plain[10:15]
    assert text_of("--draft", DRAFT, "--stop", "no such text", "--stop", stop, count=-1) == plain[: plain.index(stop)]


def test_drafted_text_is_green_where_that_is_asked_for(plain) -> None:
    coloured = text_of("--draft", TARGET, "--colour")
    assert re.sub(r"\x1b\[\d+m", "", coloured) == plain
    assert coloured.startswith(plain.split()[0] + GREEN), "the first token is the target's"
    assert coloured.count(GREEN) == coloured.count(RESET) > 4
    assert text_of("--draft", TARGET) == text_of("--colour") == plain


def test_a_seed_fixes_the_text_and_another_one_gives_another() -> None:
    sampled = [text_of("--draft", DRAFT, "--temperature", 1, "--seed", seed) for seed in (1, 1, 2)]
    assert sampled[0] == sampled[1] != sampled[2]
    assert text_of("--draft", DRAFT, "--temperature", 1, "--seed", 1, "--top-k", 1) == text_of()


@pytest.mark.parametrize(
    ("arguments", "sampling"),
    [
        (("--repetition-penalty", 1.5, "--penalty-window", 8), {"repetition_penalty": 1.5, "penalty_window": 8}),
        (("--presence-penalty", 2), {"presence_penalty": 2.0}),
        (("--frequency-penalty", 2), {"frequency_penalty": 2.0}),
    ],
)
def test_penalties_are_those_of_the_sampling_parameters(arguments, sampling, plain) -> None:
    wanted = plain_text(sampling=SamplingParams(temperature=0, **sampling))
    assert text_of("--draft", DRAFT, *arguments) == wanted != plain


def test_caches_are_bounded_where_that_is_asked_for(plain) -> None:
    """Plain decoding with the same caches is the measure."""
    bounded = run("--prompt", PROMPT, "--max-tokens", COUNT, "--draft", DRAFT, "--max-kv-size", 8, "--compare")
    assert bounded.stderr.endswith("the text is identical\n")
    assert bounded.stdout != plain + "\n"


def test_both_caches_are_quantised_where_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a model whose heads are wide enough; the toys' are not."""
    model = LoadedModel(build("llama_quantised", 32, 5), load(TARGET).tokenizer)
    monkeypatch.setattr("specproof.generation.turn.load", lambda name: model)
    turn = Generation(replace(SETTINGS, draft="the same", caches=CacheSettings(kv_bits=4, kv_group_size=32))).start()
    list(turn)
    for cache in (turn.text.state.target_cache, turn.text.state.drafter.drafters[1].cache):
        assert {(type(layer), layer.bits, layer.group_size) for layer in cache} == {(QuantizedKVCache, 4, 32)}
    late = ("--quantized-kv-start", 12, "--kv-group-size", 32, "--max-tokens", COUNT, "--compare")
    assert run("--prompt", PROMPT, "--lookup", "--kv-bits", 4, *late).stderr.endswith("the text is identical\n")


def test_a_size_that_says_nothing_to_a_model_with_caches_of_its_own_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = LoadedModel(build("gemma3_text", 32, 5), load(TARGET).tokenizer)
    monkeypatch.setattr("specproof.generation.turn.load", lambda name: model)
    result = run("--prompt", PROMPT, "--max-kv-size", 8)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "max_kv_size is 8, but the target has caches of its own (KVCache, RotatingKVCache)" in result.stderr


def test_a_draft_model_ends_its_block_where_it_is_less_sure_than_min_prob() -> None:
    def drafted_a_round(min_prob: float) -> float:
        arguments = ("--draft", DRAFT, "--temperature", 1, "--min-prob", min_prob)
        line = run("--prompt", PROMPT, "--max-tokens", 40, *arguments).stderr
        found = re.search(r"(\d+) drafted, (\d+) rounds", line)
        return int(found[1]) / int(found[2]) if found else 0

    assert drafted_a_round(0) > drafted_a_round(0.3) > drafted_a_round(2) == 0


def test_a_prompt_comes_from_an_argument_a_file_or_standard_input(tmp_path: Path, plain) -> None:
    (tmp_path / "prompt").write_text(PROMPT + "\n")
    assert run("--prompt-file", tmp_path / "prompt", "--max-tokens", COUNT).stdout == plain + "\n"
    assert run("--max-tokens", COUNT, given=PROMPT + "\n").stdout == plain + "\n"


def test_a_chat_template_is_used_where_there_is_one_unless_it_is_not_wanted(tmp_path: Path, plain) -> None:
    folder = shutil.copytree(TARGET, tmp_path / "chat")
    (folder / "chat_template.jinja").write_text("{% for m in messages %}t9 {{ m.content }} t2{% endfor %}")
    assert text_of(model=folder) == text_of("--chat", model=folder) == plain_text(f"t9 {PROMPT} t2") != plain
    assert text_of("--no-chat", model=folder) == plain


def test_the_word_smollm2_is_a_model(monkeypatch: pytest.MonkeyPatch, plain) -> None:
    monkeypatch.setattr("mlx_impl.smollm2.find", lambda: TARGET)
    assert text_of(model="smollm2") == plain


def test_float32_is_computed_in_where_that_is_asked_for(tmp_path: Path) -> None:
    folder = shutil.copytree(TARGET, tmp_path / "half")
    weights = mx.load(str(folder / "model.safetensors"))
    mx.save_safetensors(str(folder / "model.safetensors"), {k: w.astype(mx.float16) for k, w in weights.items()})
    for float32, dtype in ((True, mx.float32), (False, mx.float16)):
        model = Generation(replace(SETTINGS, model=str(folder), float32=float32)).target.model
        assert model.layers[0].mlp.up_proj.weight.dtype == dtype


# ---------------------------------------------------------------------------------------------- ends and wrong calls


@dataclass
class FailsAt:
    """A round that raises, the third one."""

    step: Any
    error: BaseException
    calls: int = 0

    def __call__(self, decoder: Decoder, state: Any) -> Any:
        self.calls += 1
        if self.calls == 3:
            raise self.error
        return self.step(decoder, state)


@pytest.mark.parametrize(
    ("error", "status", "told"),
    [(KeyboardInterrupt(), 130, "interrupted"), (NonFiniteLogits("the target's logits hold NaN"), 1, "hold NaN")],
    ids=["Ctrl-C", "a fault"],
)
def test_what_had_come_before_an_interrupt_or_a_fault_stays_with_its_figures(
    error, status, told, monkeypatch: pytest.MonkeyPatch, plain
) -> None:
    fails = FailsAt(Decoder.step, error)
    monkeypatch.setattr(Decoder, "step", lambda decoder, state: fails(decoder, state))
    result = run("--prompt", PROMPT, "--max-tokens", COUNT, "--draft", TARGET, "--k", 2, "--compare")
    assert result.exit_code == status
    assert result.stdout == " ".join(plain.split()[:7]) + "\n"
    figures, message = result.stderr.splitlines()
    assert re.fullmatch(FIGURES + ROUNDS, figures)[1] == "7"
    assert message.startswith("specproof: ")
    assert told in message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--rule", "best"), "rule is 'best'; give one of greedy, sampler_match, rejection, block, coupled"),
        (("--rule", "greedy", "--temperature", "1"), "rule 'greedy' at temperature 1.0 would change"),
        (("--temperature", "-1"), "temperature is -1.0; give a finite number >= 0"),
        (("--max-tokens", "-2"), "max_tokens is -2; give an integer >= 0, or -1 for no limit"),
        (("--seed", "-1"), "seed is -1; give"),
        (("--k", "2"), "--k is 2, and nothing drafts; give --draft or --lookup"),
        (("--lookup", "--k", "many"), "--k is 'many'; give an integer >= 0, or auto"),
        (("--compare",), "--compare has plain decoding on both sides"),
        (("--lookup", "--min-prob", "0.2"), "--min-prob is 0.2, and there is no draft model; give --draft"),
        (("--draft", str(DRAFT), "--min-prob", "nan"), "min_prob is nan; give a finite number >= 0"),
        (("--presence-penalty", "inf"), "presence_penalty is inf; give a finite number"),
        (("--max-kv-size", "4"), "max_kv_size is 4; give an integer >= 5; the first 4 rows are always kept"),
        (("--kv-bits", "9"), "bits is 9; MLX quantises with 2, 3, 4, 5, 6, 8"),
        (("--kv-bits", "4", "--kv-group-size", "48"), "group_size is 48; MLX quantises with 32, 64, 128"),
        (("--kv-bits", "4"), "rows of 8 numbers cannot be quantised in groups of 64"),
        (("--kv-bits", "4", "--quantized-kv-start", "99"), "rows of 8 numbers cannot be quantised in groups of 64"),
        (("--kv-bits", "4", "--quantized-kv-start", "-1"), "start is -1; give an integer >= 0"),
        (("--kv-group-size", "32"), "--kv-group-size is 32, and nothing is quantised; give --kv-bits, too"),
        (("--quantized-kv-start", "5"), "--quantized-kv-start is 5, and nothing is quantised; give --kv-bits, too"),
        (
            ("--kv-bits", "4", "--max-kv-size", "8"),
            "--kv-bits and --max-kv-size are both given; a cache is quantised or bounded",
        ),
        (("--stop", ""), "a stop string is empty"),
        (("--chat",), "this tokenizer has no chat template"),
        (("--prompt-file", "x"), "both --prompt and --prompt-file are given; give one"),
        (("--draft", str(tiny().draft)), "the target knows 32 tokens, the drafter 3"),
        (("--draft", "no/such/model"), "no/such/model is not a file; give a GGUF file, or a folder"),
    ],
)
def test_a_wrong_call_is_refused_in_one_line(arguments: tuple[str, ...], message: str) -> None:
    result = run("--prompt", PROMPT, *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("specproof: ")
    assert message in line


def test_a_prompt_that_is_empty_or_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "latin1").write_bytes(b"\xe9")
    for arguments, message in (
        ((), "the prompt has no tokens"),
        (("--prompt-file", tmp_path / "latin1"), "give a text in UTF-8"),
        (("--prompt-file", tmp_path / "none"), "cannot read the prompt from"),
    ):
        result = run(*arguments)
        assert (result.exit_code, result.stdout) == (2, "")
        assert message in result.stderr


def test_a_model_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    folder = shutil.copytree(TARGET, tmp_path / "bare")
    (folder / "tokenizer.json").unlink()
    result = run("--prompt", PROMPT, model=folder)
    assert result.exit_code == 2
    assert "has no tokenizer.json; text needs one" in result.stderr


def test_without_mlx_the_command_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "specproof.generation.turn", None)
    result = run("--prompt", PROMPT)
    assert result.exit_code == 2
    assert "generate needs a package that is not installed" in result.stderr
    assert "pip install 'specproof[mlx-lm]'" in result.stderr
