"""Reading argument definitions as text, on a source that has the forms of TensorRT-LLM's llm_args.py."""

from __future__ import annotations

import pytest

from slurm_llm.agent.arguments import Arguments, read_argument_names

SOURCE = '''
from pydantic import AliasChoices, BaseModel, Field, PrivateAttr
import tensorrt_llm_that_is_not_installed

class Strict(BaseModel):
    model_config = {"extra": "forbid"}

class Cache(Strict, Mirror):
    """Doc."""
    fraction: Optional[float] = Field(default=0.9, ge=0, le=1)
    tokens: int = 3
    KIND: ClassVar[str] = "kv"
    _hidden: int = PrivateAttr(default=0)
    def fraction_of(self) -> float: ...

class Draft(Strict):
    model: Optional[str] = Field(default=None, validation_alias=AliasChoices("model", "model_dir"))

class Eagle(Draft):
    layers: Literal["all"] = "all"

class Lookahead(Draft):
    window: int = 4

Speculative: TypeAlias = Annotated[Union[Eagle, Lookahead], Field(discriminator="kind")]

class Base(Strict):
    model: Union[str, Path] = Field(description="The model.")
    cache_config: "Optional[Cache]" = None
    session: Optional[object] = Field(default=None, alias="_session")
    speculative_config: Optional[Speculative] = Field(default=None)
    private: int = PrivateAttr(0)
    _parallel: Optional[object] = None

    @property
    def parallel(self): return self._parallel

class Torch(Base):
    stream_interval: PositiveInt = 1
    cache_config: Cache = Field(default_factory=Cache)

class Other(Strict):
    elsewhere: int = 0
'''


def test_fields_of_a_class_and_its_bases() -> None:
    """Inherited fields and aliases count; methods, class variables and private attributes do not."""
    found = read_argument_names(SOURCE, "Torch")
    assert found == Arguments(
        names=("_session", "cache_config", "model", "session", "speculative_config", "stream_interval"),
        sections={
            "cache_config": ("fraction", "tokens"),
            "speculative_config": ("layers", "model", "model_dir", "window"),
        },
    )


@pytest.mark.parametrize(
    ("source", "message"),
    [("class A(: pass", "not readable as Python: line 1: "), ("class A: pass", "no class TorchLlmArgs")],
)
def test_what_cannot_be_read(source: str, message: str) -> None:
    """An image of another kind, or one that is newer than the Python that reads it."""
    with pytest.raises(ValueError, match=message):
        read_argument_names(source)


def test_a_class_that_is_its_own_base_ends() -> None:
    """Nothing that lies in an image makes it run forever."""
    source = "class A(B):\n    x: int\nclass B(A):\n    y: int\nT = U\nU = T\nclass C(A):\n    z: T\n"
    assert read_argument_names(source, "C").names == ("x", "y", "z")
