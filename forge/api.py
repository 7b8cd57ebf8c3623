"""Names for components of users: each stays where modules of forge are moved.

`from forge.api import Callback, opt` imports what these two need; no other name costs anything.
Names that end in Section, and `Config`, describe a component without torch; the class of the same
name without the ending computes it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forge.config import register
    from forge.config.data.text import Data as DataSection
    from forge.config.field import Condition, Section, opt, section
    from forge.config.model.decoder import Decoder as DecoderSection
    from forge.config.model.feed_forwards.base import FeedForward as FeedForwardSection
    from forge.config.model.layer import Model as ModelSection
    from forge.config.model.mixers.attention import Attention as AttentionSection
    from forge.config.model.mixers.base import Mixer as MixerSection
    from forge.config.model.tensors import TensorSpec, linear, norm
    from forge.config.objectives.base import NextToken as NextTokenSection
    from forge.config.objectives.base import Objective as ObjectiveSection
    from forge.config.optimizers.base import Optimizer as OptimizerSection
    from forge.config.optimizers.schedules import Scheduler as SchedulerSection
    from forge.config.root import Config
    from forge.config.rule import Derived, derivation, rule
    from forge.config.tokenizers.tokenizer import Tokenizer as TokenizerSection
    from forge.data import IGNORE_INDEX
    from forge.data.batches.loader import Batch
    from forge.data.text.corpus import Corpus
    from forge.data.tokenizers.tokenizer import Tokenizer
    from forge.data.tokens.tokens import TokenSource
    from forge.models.attention import Attention
    from forge.models.cache import LayerCache
    from forge.models.contract import InStep, LanguageModel
    from forge.models.feed_forward import FeedForward
    from forge.models.head import head_of
    from forge.models.rope import Rotation
    from forge.objectives.losses import Losses
    from forge.objectives.next_token import NextToken
    from forge.objectives.objective import LookedAhead, Objective, hidden_of
    from forge.optim.whole_matrices import WholeMatrices
    from forge.parallel.mesh import Mesh
    from forge.parallel.modules import mix_in_each
    from forge.parallel.ranks import Ranks
    from forge.parallel.technique import Technique
    from forge.sandbox.run import SandboxLimits, run_python
    from forge.tasks.item import Generated, Item, Judged, Pair, Prompt, Score
    from forge.tasks.task import Task
    from forge.tensors.local import copy_local, local
    from forge.training.callback import Callback
    from forge.training.callback import LoopView as Loop
    from forge.training.session import Session
    from forge.training.step_output import StepOutput
    from forge.training.tracker import Tables, Tracker

__all__ = [
    "Attention",
    "AttentionSection",
    "Batch",
    "Callback",
    "Condition",
    "Config",
    "Corpus",
    "DataSection",
    "DecoderSection",
    "Derived",
    "FeedForward",
    "FeedForwardSection",
    "Generated",
    "IGNORE_INDEX",
    "InStep",
    "Item",
    "Judged",
    "LanguageModel",
    "LayerCache",
    "Loop",
    "LookedAhead",
    "Losses",
    "Mesh",
    "MixerSection",
    "ModelSection",
    "NextToken",
    "NextTokenSection",
    "Objective",
    "ObjectiveSection",
    "OptimizerSection",
    "Pair",
    "Prompt",
    "Ranks",
    "Rotation",
    "SchedulerSection",
    "SandboxLimits",
    "Score",
    "Section",
    "Session",
    "StepOutput",
    "Task",
    "Technique",
    "TensorSpec",
    "TokenSource",
    "Tokenizer",
    "TokenizerSection",
    "Tables",
    "Tracker",
    "WholeMatrices",
    "copy_local",
    "derivation",
    "head_of",
    "hidden_of",
    "linear",
    "local",
    "mix_in_each",
    "norm",
    "opt",
    "register",
    "rule",
    "run_python",
    "section",
]
PLACES = """
register            config
DataSection         config.data.text Data
Condition           config.field
Section             config.field
opt                 config.field
section             config.field
DecoderSection      config.model.decoder Decoder
FeedForwardSection  config.model.feed_forwards.base FeedForward
ModelSection        config.model.layer Model
AttentionSection    config.model.mixers.attention Attention
MixerSection        config.model.mixers.base Mixer
TensorSpec          config.model.tensors
linear              config.model.tensors
norm                config.model.tensors
NextTokenSection    config.objectives.base NextToken
ObjectiveSection    config.objectives.base Objective
OptimizerSection    config.optimizers.base Optimizer
SchedulerSection    config.optimizers.schedules Scheduler
Config              config.root
Derived             config.rule
derivation          config.rule
rule                config.rule
TokenizerSection    config.tokenizers.tokenizer Tokenizer
IGNORE_INDEX        data
Batch               data.batches.loader
Corpus              data.text.corpus
Tokenizer           data.tokenizers.tokenizer
TokenSource         data.tokens.tokens
Attention           models.attention
LayerCache          models.cache
InStep              models.contract
LanguageModel       models.contract
FeedForward         models.feed_forward
head_of             models.head
Rotation            models.rope
Losses              objectives.losses
NextToken           objectives.next_token
LookedAhead         objectives.objective
Objective           objectives.objective
hidden_of           objectives.objective
WholeMatrices       optim.whole_matrices
Mesh                parallel.mesh
mix_in_each         parallel.modules
Ranks               parallel.ranks
Technique           parallel.technique
SandboxLimits       sandbox.run
run_python          sandbox.run
Generated           tasks.item
Item                tasks.item
Judged              tasks.item
Pair                tasks.item
Prompt              tasks.item
Score               tasks.item
Task                tasks.task
copy_local          tensors.local
local               tensors.local
Callback            training.callback
Loop                training.callback LoopView
Session             training.session
StepOutput          training.step_output
Tables              training.tracker
Tracker             training.tracker
"""
"""A line for each name: its module below forge, and its name there where that is another. A test
compares it with the imports above, which are for type checkers."""
_PLACES = {row[0]: row[1:] for row in map(str.split, PLACES.strip().splitlines())}


def __dir__() -> list[str]:
    return [*globals(), *_PLACES]


def __getattr__(name: str) -> Any:
    """Import a name on its first use."""
    if name not in _PLACES:
        raise AttributeError(f"module 'forge.api' has no attribute '{name}'")
    module, *attribute = _PLACES[name]
    value = getattr(importlib.import_module(f"forge.{module}"), *(attribute or [name]))
    globals()[name] = value
    return value
