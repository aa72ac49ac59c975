"""Bodies of requests, which also are the OpenAPI description."""

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr, model_validator

from lmlab.core.untrusted_input import MAX_SEED
from lmlab.scoring.scoring_options import ScoringMethodName

Ids = Annotated[list[StrictInt], Field(min_length=1, fail_fast=True)]
Texts = Annotated[list[StrictStr], Field(min_length=1, fail_fast=True)]
Prompts: TypeAlias = (
    StrictStr | Ids | Texts | Annotated[list[Ids], Field(min_length=1, fail_fast=True)]
)
Seed = Annotated[StrictInt, Field(ge=0, le=MAX_SEED)]
MAX_ALTERNATIVES = 20
MAX_WIDTH = 64

FORMS = {
    "prompt": "a text, a list of texts, a list of token ids or a list of such lists",
    "input": "a text, a list of texts, a list of token ids or a list of such lists",
    "stop": "a text or a list of at most 16 texts that are not empty",
    "texts": "a list of texts",
    "sources": "a list of texts",
    "questions": "a list of texts",
}
"""What fields of several types must be, for errors."""


class Request(BaseModel):
    """What all bodies have in common."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    model: StrictStr | None = Field(
        None, description="Name of a model; may be left out where one is served."
    )


class CompletionRequest(Request):
    """Continue prompts, or score them with `echo` and `logprobs`."""

    prompt: Prompts = ""
    max_tokens: StrictInt = Field(16, ge=0, description="0 generates nothing.")
    temperature: float = Field(1.0, ge=0, le=100, description="0 is greedy decoding.")
    top_p: float = Field(1.0, gt=0, le=1)
    n: StrictInt = Field(1, ge=1, description="Choices for each prompt.")
    stop: (
        Annotated[StrictStr, Field(min_length=1)]
        | Annotated[list[Annotated[StrictStr, Field(min_length=1)]], Field(max_length=16)]
        | None
    ) = None
    seed: Seed | None = None
    echo: bool = False
    logprobs: Annotated[StrictInt, Field(ge=0, le=MAX_ALTERNATIVES)] | None = Field(
        None, description="Log-probabilities in nats, with so many alternatives for each token."
    )
    stream: bool = False
    stream_options: dict[str, Any] | None = None
    user: StrictStr | None = Field(None, description="Ignored.")
    best_of: StrictInt | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    suffix: StrictStr | None = None

    @property
    def unsupported(self) -> list[str]:
        """Fields of OpenAI's interface that are set to what this server does not do."""
        neutral: dict[str, tuple[Any, ...]] = {
            "best_of": (None, self.n),
            "frequency_penalty": (None, 0),
            "presence_penalty": (None, 0),
            "logit_bias": (None, {}),
            "suffix": (None, ""),
        }
        return [name for name, values in neutral.items() if getattr(self, name) not in values]

    @property
    def stops(self) -> tuple[str, ...]:
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)


class EmbeddingRequest(Request):
    """Vectors of texts."""

    input: Prompts
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: StrictInt | None = None
    user: StrictStr | None = Field(None, description="Ignored.")


class ScoreRequest(Request):
    """Log-probabilities of texts."""

    texts: Texts
    sources: Texts | None = Field(None, description="What each text is conditioned on.")
    per_token: bool = False
    method: ScoringMethodName | None = None
    positions: Annotated[list[StrictInt], Field(max_length=1000)] | None = None
    head: Literal["own", "none"] = "own"
    mean: bool = False
    window: Annotated[StrictInt, Field(ge=1, le=1_000_000)] | None = None
    stride: Annotated[StrictInt, Field(ge=1, le=1_000_000)] | None = None

    @model_validator(mode="after")
    def check_sources(self) -> "ScoreRequest":
        """A source for each text."""
        if self.sources is not None and len(self.sources) != len(self.texts):
            raise ValueError(f"sources must be {len(self.texts)}, one for each text.")
        return self


class FillRequest(Request):
    """Fill the masks of texts."""

    texts: Texts
    top: StrictInt = Field(5, ge=1, le=1000)
    joint: bool = False
    blanks: bool = False
    among: Annotated[list[StrictStr], Field(max_length=1000)] = []
    beam: StrictInt = Field(8, ge=1, le=MAX_WIDTH)
    max_length: StrictInt = Field(20, ge=1, le=512)
    sample: bool = False
    seed: Seed = 0


class AskRequest(Request):
    """Answer questions."""

    questions: Texts
    answers: StrictInt = Field(1, ge=1, le=MAX_WIDTH)
    method: Literal["thorough", "fast", "beam", "greedy", "sample"] | None = None
    beam: Annotated[StrictInt, Field(ge=1, le=MAX_WIDTH)] | None = None
    max_length: Annotated[StrictInt, Field(ge=1, le=512)] | None = None
    seed: Seed = 0


class EncodeRequest(Request):
    """Hidden states of texts."""

    texts: Texts
    layer: Annotated[StrictInt, Field(ge=-1000, le=1000)] | None = None
    pooling: Literal["own", "mean", "max", "last", "first"] | None = None
    per_token: bool = False


class DetectRequest(Request):
    """Detect replaced tokens."""

    texts: Texts


class ErrorDetail(BaseModel):
    """What was expected, what was given, what to do."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(BaseModel):
    """An error in OpenAI's form."""

    error: ErrorDetail
