"""Every typed error of the project. A message names the offending value, says why it is refused and what to do."""


class SpeculationError(Exception):
    """Base of every error raised on purpose by `reference`, `mlx_impl` and `specproof`."""


class InvalidInput(SpeculationError, ValueError):
    """The call was wrong: an argument is refused before anything is changed."""


class EmptyPrompt(InvalidInput):
    """A prompt without tokens: there is no position to predict from."""


class TokenOutOfRange(InvalidInput):
    """A token id outside 0 .. vocab_size - 1."""


class InvalidSetting(InvalidInput):
    """A setting outside its range: k, temperature, top_p, max_tokens, an unknown rule and the like."""


class VocabularyMismatch(InvalidInput):
    """Target and drafter do not number their tokens alike."""


class CheckpointError(InvalidInput):
    """A folder or file that is not a readable checkpoint, or holds what cannot be read faithfully."""


class MissingExtra(InvalidInput):
    """A package that an optional part needs is not installed."""


class CacheLengthError(InvalidInput):
    """A cache holds more, or fewer, rows than the call needs. It is never cut silently."""


class DecodingFault(SpeculationError, RuntimeError):
    """A model, a drafter or a processor broke its contract; the decoder is left at its last round boundary."""


class NonFiniteLogits(DecodingFault):
    """NaN or infinite logits. The message names the model and the position."""


class HiddenCache(DecodingFault):
    """A model's forward left the cache it was given unchanged, so no drafter can roll it back."""


class ContextExhausted(DecodingFault):
    """A position beyond those a model was made for."""


class DishonestDraft(DecodingFault):
    """A drafted token has no mass under the distribution it is said to be drawn from."""
